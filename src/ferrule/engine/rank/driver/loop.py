"""Driver: the rank that takes in requests and says what all ranks run; tokens go back from here."""

from __future__ import annotations

import time
from collections import deque

from torch import Tensor

from ferrule.engine.grammar import GrammarError
from ferrule.engine.inter_token import parse_inter_token_limit
from ferrule.engine.messages import (
    Add,
    Attach,
    Cancel,
    Embed,
    Embedded,
    Hold,
    Join,
    Learn,
    Listen,
    Listening,
    Load,
    NewToken,
    Refused,
    TakeOver,
    Tokens,
    Unhanded,
)
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch, Kind, announce
from ferrule.engine.rank.cache.prefix import BLOCK, PrefixIndex
from ferrule.engine.rank.cache.shared import read_blocks
from ferrule.engine.rank.control import Control
from ferrule.engine.rank.driver.drafting import Drafting, Drafts
from ferrule.engine.rank.driver.handover import Awaiting
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.moving import Moving
from ferrule.engine.rank.driver.pace import Pace
from ferrule.engine.rank.driver.pooling import Pools
from ferrule.engine.rank.driver.scheduler import Scheduler
from ferrule.engine.rank.driver.spans import attended_by, load_of
from ferrule.engine.rank.driver.speculation import Speculation
from ferrule.engine.rank.driver.told import new_tokens
from ferrule.engine.rank.encoder.runner import EncoderRunner
from ferrule.engine.rank.handover.end import HandOverEnd, obeyed
from ferrule.engine.rank.handover.keeper import Keeper
from ferrule.engine.rank.runner import Runner
from ferrule.engine.rank.sampling.constrained import Grammars, Matcher
from ferrule.engine.rank.sampling.sampler import Choice, Choices, Sampler
from ferrule.engine.rank.sampling.scoring import rows_at_once, score_batch
from ferrule.engine.rank.sampling.verify import Wanted, verify
from ferrule.engine.rank.sequence import Sequence
from ferrule.engine.rank.vision.incoming import Incoming, features_of
from ferrule.engine.rank.warm_up import Trial
from ferrule.engine.types import PrefixUse, SamplingParams
from ferrule.errors import EngineError

EXACT_SECONDS = 5.0
"""Seconds that may be spent on computing an interrupted answer's tokens one at a time, as they were made: then its
cache is equal to the last bit. Longer ones are computed in pieces, as prompts are, which rounds in another order."""
IDLE_PERIOD = 1.0
"""Seconds after which an idle driver tells the others that it is alive."""
OPENING_PERIOD = 0.005
"""Seconds between the looks of a driver, which has nothing else to do, at whether a grammar is compiled."""


class Driver:
    """Requests in, batches out to all ranks, tokens back. Keeps as many batches under way as there are stages."""

    def __init__(
        self,
        options: RankOptions,
        runner: Runner,
        control: Control,
        trial: Trial,
        vocabulary: int,
        short_context: int | None = None,
        prefixes: PrefixIndex | None = None,
        incoming: Incoming | None = None,
        draft: Drafts | None = None,
        end: HandOverEnd | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.runner, self.control, self.step_seconds = runner, control, trial.step_seconds
        self.depth = options.plan.pipeline
        self.adapters = options.adapters
        limits = Limits(
            batch_tokens=options.batch_tokens,
            cache_tokens=trial.cache_tokens,
            sequences=trial.sequences,
            context=min(options.context, trial.cache_tokens),
            batches=self.depth,
            short=short_context,
            scored=rows_at_once(vocabulary),
            whole=isinstance(runner, EncoderRunner),
        )
        self.prefixes = prefixes or PrefixIndex(enabled=False)
        ends = frozenset(options.end_tokens)
        pace = Pace(parse_inter_token_limit(options.inter_token_limit), trial.step_seconds, trial.ridge)
        guesses = options.speculate and trial.unshared is None and not limits.whole
        self.speculation: Speculation | None = None
        if guesses and draft is not None:
            seconds = trial.step_seconds
            self.speculation = Drafting(options.speculate, ends, limits, draft=draft, step_seconds=seconds)
        elif guesses:
            self.speculation = Speculation(options.speculate, ends, limits)
        self.scheduler = Scheduler(limits, ends, self.prefixes, pace, speculation=self.speculation)
        self.grammars = Grammars(vocabulary, options.end_tokens)
        self.skips = not runner.captured_room()  # a captured step of one token is cheaper than any other
        self.opening: dict[int, tuple[Add, Matcher | None]] = {}  # until their grammars are compiled
        self.samplers: dict[int, Sampler] = {}
        self.incoming = incoming or Incoming(None)
        self.pools = Pools()
        self.end = end
        self.awaiting: Awaiting | None = None
        if end is not None and not end.prompts and self.prefixes.enabled:
            self.awaiting = Awaiting(end, self.prefixes, control.send)
        self.moving: Moving | None = None
        if keeper is not None:
            self.moving = Moving(keeper, self.scheduler, self.prefixes, self._order)
        self.under_way: deque[Batch] = deque()
        self.unread: tuple[Batch, Choices] | None = None
        """A batch that has run, and its tokens, which the device has chosen and the host has not read."""
        self.since = 0.0
        """When the last step ended, or the one began that came after a pause."""
        self.reported = Load(0, 0)

    def loop(self) -> None:
        """Until the model moves elsewhere."""
        while self.moving is None or not self.moving.keeper.leaves:
            self.step()

    def step(self) -> None:
        """Take in requests and run a batch, if there is any."""
        moving = self.moving if self.moving is not None and self.moving.asked is not None else None
        busy = bool(self.under_way or self.scheduler.by_identity) and not (moving and moving.stopped)
        self._take_requests(0.0 if busy else OPENING_PERIOD if self._pending else IDLE_PERIOD)
        if not busy:
            self.since = time.perf_counter()
        if self.unread is not None:
            self._go_on(*self.unread)
            return
        while len(self.under_way) < self.depth and moving is None:
            if self.scheduler.seeks():
                if self.under_way:
                    break
                self._read()
            if self.speculation is not None:
                self.speculation.look_ahead(self.scheduler.running, self.scheduler.pace)
            if self.awaiting is not None and self.awaiting.due(self.scheduler.room):
                if self.under_way:
                    break
                self._receive(self.awaiting)
            batch = self.scheduler.next_batch()
            if batch is None:
                break
            self._announce(batch)
            self.under_way.append(batch)
        if self.under_way:
            batch = self.under_way.popleft()
            begin = time.perf_counter()
            self._finish(batch)
            if len(batch.tokens) >= BLOCK:
                self.prefixes.costs.took(time.perf_counter() - begin, tokens=len(batch.tokens))
        elif moving is not None and moving.asked is not None and not moving.stopped:
            moving.hold(moving.asked)
        elif not busy:
            self._order(self.scheduler.idle_batch())
        if not self.scheduler.by_identity:  # else the next step says so at once
            self._report_load()

    @property
    def _pending(self) -> int:
        """Requests that are known and not yet the scheduler's."""
        return len(self.opening) + (0 if self.awaiting is None else len(self.awaiting.requests))

    def _announce(self, batch: Batch) -> None:
        announce(self.runner.world, self.runner.plan.driver, batch)

    def _order(self, batch: Batch) -> None:
        """Have all ranks do what ``batch`` says, which computes nothing."""
        self._announce(batch)
        obeyed(self.end, batch)
        self._run(batch)

    def _run(self, batch: Batch, features: list[bytes] | tuple[()] = ()) -> Tensor | None:
        output = self.runner.run(batch, features)
        if self.speculation is not None:
            self.speculation.ran(batch)
        return output

    def _receive(self, awaiting: Awaiting) -> None:
        """Have all ranks do what is due for hand-overs, and begin what can begin then."""
        batch = self.scheduler.idle_batch(awaiting.next_batch(self.scheduler.room))
        self._order(batch)
        for each in awaiting.counted(batch, awaiting.end.count(batch)):
            self._add(each.order, each.matcher)
            self.scheduler.reused(each.order.id, BLOCK * each.first)
        self.scheduler.admit()

    def _read(self) -> None:
        """Have blocks read from disk, by all ranks, with which sequences can begin that wait to."""
        while (found := self.scheduler.read_batch()) is not None:
            sequence, batch = found
            self._order(batch)
            begin = time.perf_counter()
            count = read_blocks(self.runner.shared, batch, self.runner.world)
            self.since = time.perf_counter()
            self.prefixes.costs.took(self.since - begin, blocks=count)
            self.scheduler.have_read(sequence, batch, count)
            if self.scheduler.answers():  # they do not wait for more at once
                return

    def _take_requests(self, wait: float) -> None:
        """Take in what has come from the parent within ``wait`` seconds."""
        for order in self.control.orders(wait):
            if isinstance(order, Attach):
                self.incoming.take(order)
            elif isinstance(order, Add):
                constraint = order.params.constraint
                skips = self.skips and order.params.logprobs is None
                matcher = None if constraint is None else self.grammars.open(constraint, order.made, skips=skips)
                self.opening[order.id] = order, matcher
            elif isinstance(order, Embed):
                self.pools.begin(order.id, order.pooling)
                self.scheduler.add(order.id, order.prompt, SamplingParams(turn=order.turn), embedded=True)
            elif isinstance(order, Learn):
                self.grammars.learn(order.tokenizer)
            elif isinstance(order, Cancel):
                self.opening.pop(order.id, None)
                self.incoming.drop(order.id)
                self.scheduler.cancel(order.id)
                if self.awaiting is not None:
                    self.awaiting.cancel(order.id)
            elif isinstance(order, Unhanded) and self.awaiting is not None:
                self.awaiting.give_up(order.id)
            elif isinstance(order, Listen) and self.end is not None:
                self.control.send(Listening(self.end.listen(beyond=order.beyond)))
            elif isinstance(order, Listen | Hold | TakeOver) and self.moving is not None:
                self.moving.obey(order)
            elif isinstance(order, Join) and self.end is not None:
                self._order(self.scheduler.idle_batch(Batch(kind=Kind.IDLE, joined=order)))
        for order, matcher in list(self.opening.values()):
            if matcher is None or matcher.ready():
                del self.opening[order.id]
                self._begin(order, matcher)
        if self.awaiting is not None:
            for each in self.awaiting.local(idle=not self.scheduler.by_identity):
                self._add(each.order, each.matcher)
            self.scheduler.closed(self.awaiting.closed)
            self.awaiting.closed.clear()
        self.samplers = {i: s for i, s in self.samplers.items() if i in self.scheduler.by_identity}
        self.pools.keep(self.scheduler.by_identity)
        self.scheduler.admit()  # so that those that are said to wait do
        self._report_load()

    def _begin(self, order: Add, matcher: Matcher | None) -> None:
        if matcher is not None:
            try:
                matcher.begin()
            except GrammarError as error:
                self._refuse(order.id, error)
                return
        if self.awaiting is None or not self.awaiting.take(order, matcher, self._about(order)):
            self._add(order, matcher)

    def _about(self, order: Add) -> str:
        """The identity of its adapter's files; empty where it has none."""
        found = [each for each in self.adapters if each.name == order.params.adapter]
        return found[0].identity or str(self.adapters.index(found[0]) + 1) if found else ""

    def _add(self, order: Add, matcher: Matcher | None) -> None:
        self.samplers[order.id] = Sampler(order.params, len(order.made), matcher)
        stepwise = len(order.made) * self.step_seconds <= EXACT_SECONDS
        names = [None, *(adapter.name for adapter in self.adapters)]
        adapter = names.index(order.params.adapter)
        self.scheduler.add(
            order.id,
            order.prompt,
            order.params,
            order.made,
            stepwise=stepwise,
            adapter=adapter,
            scored=order.scored,
            sights=self.incoming.sights(order),
            about=self._about(order),
            forced=() if matcher is None else matcher.forced,
        )
        self.scheduler.by_identity[order.id].hand = order.hand

    def _refuse(self, identity: int, error: GrammarError) -> None:
        self.incoming.drop(identity)
        self.control.send(Refused(identity, str(error), error.code))

    def _await_masks(self, sequences: list[Sequence]) -> None:
        """End those whose grammars have become too complex: their tokens are chosen, and dropped."""
        for sequence in sequences:
            sampler = self.samplers[sequence.identity]
            try:
                if sampler.matcher is not None and not sequence.cancelled:
                    sampler.matcher.mask()
            except GrammarError as error:
                sampler.matcher = None
                self._refuse(sequence.identity, error)
                self.scheduler.cancel(sequence.identity)

    def _finish(self, batch: Batch) -> None:
        features = features_of(batch, lambda number: self.scheduler.by_identity[number].sights)
        output = self._run(batch, features)
        if output is None:
            raise EngineError("the driver got no logits")
        if batch.kind is Kind.EMBED:
            self._pool(batch, output)
            return
        logits = self._score(batch, output) if any(span.scored for span in batch.spans) else output
        wanted = self._wanted(batch)
        if wanted and not logits.is_cpu and not any(each.drafts for each in wanted):
            self._go_on(batch, self._choices(logits, wanted))
        else:
            self._complete(batch, verify(self.runner.device, logits, wanted))

    def _choices(self, logits: Tensor, wanted: list[Wanted]) -> Choices:
        """Of a token for each sequence, from ``logits`` of the device."""
        return Choices(self.runner.device, logits, [(each.sampler, each.tokens, each.prompt) for each in wanted])

    def _pool(self, batch: Batch, hidden: Tensor) -> None:
        """Take in hidden states (tokens, width); report the vectors of prompts that end with ``batch``."""
        pooled = self.pools.add(batch, hidden, self.runner.device)
        self.runner.world.check()
        ended = [each for each in batch.spans if not self.scheduler.by_identity[each.sequence].left_after(each.tokens)]
        self.scheduler.complete(batch, [])
        for span in ended:
            self.control.send(Embedded(span.sequence, pooled[span.sequence].tobytes()))
        self._time(batch, 0, len(batch.tokens), attended_by(batch.spans))

    def _score(self, batch: Batch, logits: Tensor) -> Tensor:
        """Report the log-probabilities of prompts of which ``batch`` has a piece. Returns the ``logits`` of the
        sequences that want a token."""
        found, chosen = score_batch(self.runner.device, batch, logits, self.scheduler.by_identity)
        self.runner.world.check()
        for each in found:
            self.control.send(each)
        return chosen

    def _go_on(self, batch: Batch, choices: Choices) -> None:
        """Have the step after ``batch`` computed with the tokens as they lie on the device, where they decide nothing
        else; read them meanwhile. Of a sequence that they end one token more is computed, and dropped."""
        self.unread = None
        following = self.scheduler.following(batch)
        if following is not None and not any(self.samplers[each.sequence].looks_back for each in batch.spans):
            logits = self.runner.run_ahead(following, choices.tokens)
            if logits is not None:
                self.unread = following, self._choices(logits, self._wanted(following))
        self._complete(batch, [[choice] for choice in choices.read()])
        if self.unread is not None:
            self.scheduler.begin(self.unread[0])

    def _wanted(self, batch: Batch) -> list[Wanted]:
        """Of the sequences of ``batch`` that want tokens."""
        sequences = [self.scheduler.by_identity[span.sequence] for span in batch.spans if span.sample]
        self._await_masks(sequences)
        drafts = batch.drafts()
        return [
            Wanted(self.samplers[each.identity], each.tokens, each.prompt, drafts.get(each.identity, ()))
            for each in sequences
        ]

    def _complete(self, batch: Batch, found: list[list[Choice]]) -> None:
        self.runner.world.check()  # devices that lost a peer end what they exchange with whatever numbers they have
        load = load_of(batch, self.scheduler.by_identity)
        tokens = [choice.token for made in found for choice in made]
        done = self.scheduler.complete(batch, tokens, [len(made) for made in found])
        ends = {sequence.identity: (sequence, reason) for sequence, _, reason in done}  # as of the last token of each
        wanting = [span for span in batch.spans if span.sample]
        new: list[NewToken] = []
        for span, made in zip(wanting, found, strict=True):
            if span.sequence not in ends:
                continue
            sequence, reason = ends[span.sequence]
            new += new_tokens(sequence, reason, made, span.drafted)
            if reason is None:
                forced = self.scheduler.force(sequence, self.samplers[sequence.identity].go_on())
                new += (NewToken(sequence.identity, token, None, (), reason) for token, reason in forced)
        if new:
            self.control.send(Tokens(tuple(new)))
        self._time(batch, *load)

    def _time(self, batch: Batch, answers: int, tokens: int, attended: float) -> None:
        """``batch`` has come back, with the load that `load_of` says: what it took is the time since the one before, as
        clients see it."""
        begin, self.since = self.since, time.perf_counter()
        if batch.spans:
            self.scheduler.pace.took(self.since - begin, answers, tokens, attended)
        if self.speculation is not None:
            self.speculation.took(len(batch.tokens), self.since - begin, prompts=tokens > 0)

    def _report_load(self) -> None:
        """Say how many sequences run and wait, when that has changed."""
        use = None
        if self.prefixes.enabled:
            use = PrefixUse(self.prefixes.tokens, BLOCK * len(self.prefixes.stored), self.scheduler.hits)
        load = Load(
            len(self.scheduler.running), len(self.scheduler.waiting) + self._pending, use, self.runner.streamed()
        )
        if load != self.reported:
            self.control.send(load)
            self.reported = load

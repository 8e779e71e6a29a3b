"""Scheduler: selects the sequences that run next. Pure bookkeeping: no clocks, no tensors, no I/O.

Continuous batching: at every step each running sequence brings its next token, and what room is left in the batch is
given to the prompts of new ones, in pieces where they are long; beside answers these are as short as `Pace` says. Whose
come first: see `order`. When the cache is full the youngest sequence of the lowest priority gives its room back and is
computed again later from its tokens.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from msgspec import structs

from ferrule.engine.rank.batch import Batch, Kind, Picture, Span
from ferrule.engine.rank.cache.held import HeldBlocks
from ferrule.engine.rank.cache.prefix import BLOCK, PrefixIndex, root_key
from ferrule.engine.rank.driver.guesses import lookup_of
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.order import next_to_begin, overtake, prompts_in_order
from ferrule.engine.rank.driver.pace import RIDGE, Allowance, Pace
from ferrule.engine.rank.driver.shares import Shares
from ferrule.engine.rank.driver.spans import adapters_of, axes_of, handed_of
from ferrule.engine.rank.driver.speculation import Speculation
from ferrule.engine.rank.driver.stored import next_read, seekers, shared_keys
from ferrule.engine.rank.driver.to_ranks import OrdersToRanks
from ferrule.engine.rank.sequence import Sequence
from ferrule.engine.rank.vision.sights import Sights
from ferrule.engine.types import FinishReason, SamplingParams


@dataclass
class Scheduler:
    """``end_tokens`` are the model's own; see `SamplingParams.ignore_eos`."""

    limits: Limits
    end_tokens: frozenset[int]
    prefixes: PrefixIndex = field(default_factory=lambda: PrefixIndex(enabled=False))
    pace: Pace = field(default_factory=Pace)
    speculation: Speculation | None = None
    shares: Shares = field(default_factory=Shares)
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    by_identity: dict[int, Sequence] = field(default_factory=dict)
    _under_way: list[int] = field(default_factory=list)  # sequences of each batch
    _embedding: bool = False
    _adapted: bool = False  # whether any sequence so far has had an adapter
    _seeing: bool = False  # or images
    hits: int = 0
    """Tokens of prompts that were not computed."""

    def __post_init__(self) -> None:
        self._orders = OrdersToRanks(self.prefixes)

    def add(
        self,
        identity: int,
        prompt: Tokens[int],
        params: SamplingParams,
        made: Tokens[int] = (),
        *,
        stepwise: bool = False,
        adapter: int = 0,
        embedded: bool = False,
        scored: int = 0,
        sights: Sights | None = None,
        about: str = "",
        forced: Collection[int] = (),
    ) -> None:
        """``made``: tokens of its answer that are known already; ``forced``: the places of those that were not sampled.
        ``adapter``: as in `Batch`; ``about``: the identity of its files. The others: as of `Sequence`."""
        sequence = Sequence(identity, [*prompt, *made], len(prompt), params, stepwise, adapter)
        sequence.embedded, sequence.scored, sequence.sights = embedded, scored, sights
        sequence.held = HeldBlocks(root_key(about, long=False))
        sequence.guesses.lookup = lookup_of(prompt, params.predicted)
        sequence.forced.update(len(prompt) + place for place in forced)
        self._lengthen(sequence)
        self._adapted |= adapter != 0
        self._seeing |= sights is not None
        self.shares.joins(sequence.queue, (each.queue for each in self.by_identity.values()))
        self.by_identity[identity] = sequence
        self.waiting.append(sequence)

    def cancel(self, identity: int) -> None:
        """Forget a sequence. One that is in a batch under way goes when that batch comes back."""
        sequence = self.by_identity.get(identity)
        if sequence is None:
            return
        sequence.cancelled = True
        if not sequence.pending:
            self._remove(sequence)

    def next_batch(self) -> Batch | None:
        """The next batch, or None where every sequence is under way or there is none. Sequences that are embedded are
        in batches of their own, in turns with those of others."""
        self.admit()
        for sequence in self.running:
            self._lengthen(sequence)
        spans: list[Span] = []
        tokens: list[int] = []
        pictures: list[Picture] = []
        answered = False  # whether the last span is of an answer
        share = self._share()
        room, scored = self.limits.batch_tokens, self.limits.scored
        self._embedding = self._embeds_next()
        prompts = prompts_in_order(self.running, self.shares)
        allowance: Allowance | None = None
        if self._embedding and (answers := sum(not each.embedded for each in self.running)):
            allowance = self.pace.allow(answers, len(prompts), RIDGE)
        for sequence in (*(each for each in self.running if each.answers), *prompts):
            if answered and not sequence.answers:
                allowance, answered = self.pace.allow(len(spans), len(prompts)), False
            if len(spans) >= share or len(tokens) >= room:
                break
            if sequence.embedded != self._embedding:
                continue
            if sequence.pending or sequence.preempted:  # the second: just now
                continue
            if self.limits.whole and tokens and len(tokens) + sequence.step > room:
                break
            starts = not sequence.cached
            if starts and self.prefixes.stored and any(seekers([sequence])):
                continue  # more of it is to be read
            if starts:
                sequence.cached = sequence.held.begin(self.prefixes, shared_keys(self.prefixes, sequence))
            count = sequence.step if self.limits.whole else min(sequence.step, room - len(tokens))
            if allowance is not None and not self.limits.whole:
                count = min(count, allowance.of(sequence.cached))
            waits = not count  # for a later step, and so do those behind it
            if sequence.scores(count):
                count = min(count, scored)
            if sequence.sights is not None:
                count = sequence.sights.piece(sequence.cached, sequence.cached + count) - sequence.cached
            if not count or not self._make_room(sequence, count):
                if starts:
                    self._restart(sequence)
                if waits:
                    break
                continue
            if sequence.held.reused is None:
                self.reused(sequence.identity, sequence.cached)
            last = sequence.cached + count
            known = len(sequence.tokens) if starts else 0
            sample = last == len(sequence.tokens) and not sequence.embedded
            scores = sequence.scores(count)
            if sequence.sights is not None:
                pictures += sequence.sights.pictures(len(spans), sequence.cached, last)
            blocks = tuple(block.number for block in sequence.held.blocks) if starts else ()
            drafts = self._drafts(sequence, min(room - len(tokens) - share, scored) // share, share)
            if allowance is not None:
                allowance.spend(count, sequence.cached)
            new = [*sequence.tokens[sequence.cached : last], *drafts]
            spans.append(Span(sequence.identity, sequence.cached, len(new), sample, known, scores, blocks, len(drafts)))
            scored -= count * scores + len(drafts)
            tokens += new
            answered = sequence.answers
            sequence.pending, sequence.rejected = len(new), 0
            self.shares.took(sequence.queue, count)
        if not spans:
            return None
        self._under_way.append(len(spans))
        overtake(prompts, {span.sequence: span.tokens for span in spans})
        kind = Kind.EMBED if self._embedding else Kind.RUN
        batch = self._batch(spans, tokens, kind)
        handed = handed_of(spans, self.by_identity)
        return self._orders.with_batch(structs.replace(batch, pictures=tuple(pictures), handed=handed))

    def _batch(self, spans: Tokens[Span], tokens: Tokens[int], kind: Kind = Kind.RUN) -> Batch:
        """Of ``spans``, without orders."""
        sequences = [self.by_identity[span.sequence] for span in spans]
        adapters = adapters_of(sequences) if self._adapted else ()
        axes = axes_of(spans, sequences) if self._seeing else ()
        return Batch(tuple(spans), tuple(tokens), (), kind, adapters, axes=axes)

    def _share(self) -> int:
        """The most sequences of the next batch, so that every stage of the pipeline has one to work on, and all of them
        about as many."""
        fewer, over = divmod(len(self.running), self.limits.batches)
        larger = sum(size > fewer for size in self._under_way)
        return fewer + 1 if larger < over else max(1, fewer)

    def _embeds_next(self) -> bool:
        """Whether the next batch is one of sequences that are embedded."""
        kinds = {each.embedded for each in self.running if not each.pending}
        return not self._embedding if len(kinds) == 2 else kinds == {True}

    def following(self, batch: Batch) -> Batch | None:
        """The batch after ``batch``, which is under way, as far as it does not depend on the tokens that are chosen for
        that: one more token, here 0, of each of its sequences. None where it is not known that none of them ends but by
        a token that stops it, or where others may come first. It is under way once `begin` is told so."""
        if self.waiting or len(batch.spans) != len(self.running):
            return None
        spans: list[Span] = []
        for span in batch.spans:
            sequence = self.by_identity.get(span.sequence)
            if sequence is None or sequence.cancelled or not span.sample:
                return None
            if self.speculation is not None and not self.speculation.may_run_ahead(sequence):
                return None
            if self.limits.before_end(sequence) < 1:
                return None
            spans.append(Span(sequence.identity, len(sequence.tokens), 1, True))
        if not self._free(len(spans)):
            return None
        return self._orders.on(self._batch(spans, (0,) * len(spans)))

    def begin(self, batch: Batch) -> None:
        """``batch``, of `following`, was started before the one that it follows was complete, as that is now."""
        self._orders.told(batch)
        self._under_way.append(len(batch.spans))
        for span in batch.spans:
            sequence = self.by_identity.get(span.sequence)
            if sequence is not None:
                sequence.pending = span.tokens
                self.shares.took(sequence.queue, span.tokens)

    def complete(
        self, batch: Batch, sampled: Tokens[int], counts: Tokens[int] = ()
    ) -> list[tuple[Sequence, int, FinishReason | None]]:
        """Take in the tokens sampled for the spans of ``batch`` that wanted some. ``counts``: how many for each of
        these, if not one: those that were guessed right, and one more.

        Returns (sequence, token, why it ended or None) for each token of a sequence that is still wanted.
        """
        self._under_way.remove(len(batch.spans))
        results: list[tuple[Sequence, int, FinishReason | None]] = []
        chosen, numbers = iter(sampled), iter(counts)
        for span in batch.spans:
            made = [next(chosen) for _ in range(next(numbers, 1))] if span.sample else []
            sequence = self.by_identity.get(span.sequence)
            if sequence is None:  # it ended by the token before, which was read when this one was being computed
                continue
            before = sequence.cached // BLOCK
            right = max(0, len(made) - 1)
            sequence.rejected = span.drafted - right
            sequence.cached += sequence.pending - sequence.rejected
            sequence.pending = 0
            if span.drafted and self.speculation is not None:
                self.speculation.learn(sequence, span.drafted, right)
            sequence.tokens += made[:right]
            full = sequence.cached // BLOCK
            # Where a block could not be kept that is tried again with the next one.
            if full > max(before, len(sequence.held.blocks)) and self.prefixes.enabled and sequence.shares:
                sequence.held.keep(self.prefixes, sequence.identity, sequence.tokens, full, self.room)
            if sequence.cancelled or (sequence.embedded and not sequence.remaining):
                self._remove(sequence)
            elif made:
                sequence.tokens.append(made[-1])
                reason = self._finish(sequence, made[-1])
                results += [(sequence, token, None) for token in made[:right]]
                results.append((sequence, made[-1], reason))
                if reason is not None:
                    self._remove(sequence)
        return results

    def force(self, sequence: Sequence, tokens: Tokens[int]) -> list[tuple[int, FinishReason | None]]:
        """``tokens`` have to follow those of ``sequence``, which is not under way: they come into its next batch with
        the last one. Returns them up to one that ends it, as `complete` does."""
        results: list[tuple[int, FinishReason | None]] = []
        for token in tokens:
            sequence.forced.add(len(sequence.tokens))
            sequence.tokens.append(token)
            reason = self._finish(sequence, token)
            results.append((token, reason))
            if reason is not None:
                self._remove(sequence)
                break
        return results

    def idle_batch(self, batch: Batch | None = None) -> Batch:
        """What the ranks are to do when no batch follows that would say so, and ``batch``, which computes nothing."""
        return self._orders.with_batch(batch or Batch(kind=Kind.IDLE))

    def reused(self, identity: int, tokens: int) -> None:
        """So many tokens of a sequence were computed for earlier ones."""
        self.by_identity[identity].held.reused = tokens
        self.hits += tokens

    def closed(self, requests: list[int]) -> None:
        """As of `Batch`: the ranks are told with the next batch."""
        self._orders.closed += requests

    @property
    def room(self) -> int:
        """Tokens that the caches could hold beside those that they hold."""
        return self.limits.cache_tokens - self._used()

    def seeks(self) -> bool:
        """Whether blocks of a sequence may be on disk, and were not looked for: see `read_batch`."""
        return bool(self.prefixes.stored) and any(seekers((*self.running, *self.waiting)))

    def answers(self) -> int:
        """How many sequences bring a token at each step, and those that are forced behind it."""
        return sum(each.answers for each in self.running)

    def read_batch(self) -> tuple[Sequence, Batch] | None:
        """A batch of `Kind.READ` for a sequence, by `next_read`: no more than answers can wait for. No other may be
        under way."""
        seconds = self.pace.seconds_beside(answers, 1) if (answers := self.answers()) else None
        most = None if seconds is None else max(1, int(seconds / self.prefixes.costs.read))
        found = next_read(self.prefixes, (*self.running, *self.waiting), self.room, most)
        if found is None:
            return None
        sequence, blocks = found
        return sequence, self._orders.with_batch(Batch(kind=Kind.READ, read=blocks))

    def have_read(self, sequence: Sequence, batch: Batch, count: int) -> None:
        """All ranks have read the first ``count`` blocks of ``batch``, of `read_batch`."""
        self.prefixes.have_read(shared_keys(self.prefixes, sequence), batch.read, count)

    def _finish(self, sequence: Sequence, token: int) -> FinishReason | None:
        params = sequence.params
        ended = token in self.end_tokens and (not params.ignore_eos or params.constraint is not None)
        if ended or token in params.stop_token_ids:
            return "stop"
        if params.max_tokens is not None and sequence.generated >= params.max_tokens:
            return "length"
        return "length" if len(sequence.tokens) >= self.limits.context else None

    def _drafts(self, sequence: Sequence, most: int, answers: int) -> tuple[int, ...]:
        """As of `Speculation`: none that others would have to make room for."""
        found = () if self.speculation is None else self.speculation.drafts(sequence, most, answers)
        return found if found and self._free(1 + len(found) - sequence.rejected) else ()

    def _used(self) -> int:
        """Tokens that the caches hold: of blocks that sequences share once."""
        shared = 0 if self.prefixes.copies else BLOCK
        own = sum(each.cached + each.pending + each.rejected - shared * len(each.held.blocks) for each in self.running)
        return own + self.prefixes.tokens

    def _free(self, count: int) -> bool:
        """Whether there is room for ``count`` more tokens, in the place of blocks that no sequence has if need be."""
        missing = self._used() + count - self.limits.cache_tokens
        return missing <= 0 or self.prefixes.evict(-(-missing // BLOCK)) * BLOCK >= missing

    def admit(self) -> None:
        """Let those that wait run, as far as there are places and room."""
        while self.waiting:
            self._give_way()
            if len(self.running) >= self.limits.sequences:
                return
            found = next_to_begin(self.waiting, self.running, self.shares, self._room())
            if found is None:
                return
            self.waiting.remove(found)
            found.preempted = False
            insort(self.running, found, key=lambda each: each.place)

    def _room(self) -> int:
        """Tokens for which there would be room if those that run had all of theirs in the caches, and one more."""
        return self.limits.cache_tokens - sum(len(sequence.tokens) + 1 for sequence in self.running)

    def _give_way(self) -> None:
        """Preempt the last of those that run while one of higher priority waits for its place or its room."""
        first = min(self.waiting, key=lambda each: each.priority)
        while self.running and first.priority < self.running[-1].priority and not self.running[-1].pending:
            if len(self.running) < self.limits.sequences and len(first.tokens) < self._room():
                return
            self._preempt(self.running[-1])

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Preempt sequences of later places until ``count`` more tokens fit. False where that cannot be done now."""
        while not self._free(count - sequence.rejected):
            later = [s for s in self.running[self.running.index(sequence) + 1 :] if s.cached and not s.pending]
            if not later:
                return self._used() - sequence.rejected == sequence.cached  # alone: it may fill the cache
            self._preempt(later[-1])
        return True

    def _lengthen(self, sequence: Sequence) -> None:
        """Start a sequence that has become a long one again: all its keys get other frequencies."""
        border = self.limits.short
        if border is None or sequence.long or sequence.pending or len(sequence.tokens) <= border:
            return
        if sequence.cached:
            self._orders.released.append(sequence.identity)
        self._restart(sequence)
        sequence.held.lengthen()
        sequence.long, sequence.whole = True, border + 1

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence.cached:
            self._orders.released.append(sequence.identity)
        self._restart(sequence)
        sequence.preempted = True
        self.waiting.append(sequence)

    def _remove(self, sequence: Sequence) -> None:
        del self.by_identity[sequence.identity]
        if sequence in self.running:
            self.running.remove(sequence)
            if sequence.cached:
                self._orders.released.append(sequence.identity)
            self._restart(sequence)
        else:
            self.waiting.remove(sequence)

    def _restart(self, sequence: Sequence) -> None:
        """It is to be computed from its first token on, if it has not ended."""
        sequence.held.end(self.prefixes)
        sequence.cached = sequence.rejected = 0

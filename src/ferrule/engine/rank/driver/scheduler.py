"""Scheduler: selects the sequences that run next. Pure bookkeeping: no clocks, no tensors, no I/O.

Continuous batching: at every step each running sequence brings its next token, and what room is left in the batch is
given to the prompts of new ones, in pieces where they are long; beside answers these are short. When the cache is full
the youngest sequence gives its room back and is computed again later from its tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from ferrule.engine.rank.batch import Batch, Kind, Picture, Span
from ferrule.engine.rank.cache.held import HeldBlocks
from ferrule.engine.rank.cache.prefix import BLOCK, Orders, PrefixIndex, root_key
from ferrule.engine.rank.driver.guesses import lookup_of
from ferrule.engine.rank.driver.speculation import Speculation
from ferrule.engine.rank.sequence import Sequence
from ferrule.engine.rank.vision.sights import Sights
from ferrule.engine.types import FinishReason, SamplingParams

BESIDE_ANSWERS = 32
"""On processors, whose ridge is near 10 tokens, pieces of a third of this made gaps of 35 ms of 84, and 4 streams that
begin at once by 14 % slower, 16 by 25 %: the last ones wait longer for their first token, and then run alone."""


@dataclass(frozen=True)
class Limits:
    """``batch_tokens``: the most tokens in one step. ``cache_tokens``: the most that the caches hold together.
    ``sequences``: the most that run at once. ``context``: the most tokens of one sequence. ``batches``: how many
    batches are on their way through the pipeline at once (its number of stages). ``short``: tokens beyond which a
    sequence is computed again, with the rotary frequencies of long ones (`long_rope`); None: all are alike. ``ridge``:
    tokens of a step up to which it waits for the weights to be read, and beyond which for arithmetic (the ridge point
    of the roofline model, Williams et al. 2009). ``scored``: the most tokens of one step whose logits are kept for the
    log-probabilities of prompts. ``whole``: a prompt is computed in one step, however long it is (an encoder's)."""

    batch_tokens: int
    cache_tokens: int
    sequences: int
    context: int
    batches: int = 1
    short: int | None = None
    ridge: int = 16
    scored: int = 512
    whole: bool = False

    def beside(self, answers: int) -> int:
        """Prompt tokens of a batch that also brings the next tokens of so many answers, which wait for all of it: as
        many as cost them nothing, and `BESIDE_ANSWERS` where that is less."""
        return max(BESIDE_ANSWERS, self.ridge - answers)


@dataclass
class Scheduler:
    """``end_tokens`` are the model's own; see `SamplingParams.ignore_eos`."""

    limits: Limits
    end_tokens: frozenset[int]
    prefixes: PrefixIndex = field(default_factory=lambda: PrefixIndex(enabled=False))
    speculation: Speculation | None = None
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    by_identity: dict[int, Sequence] = field(default_factory=dict)
    _released: list[int] = field(default_factory=list)
    _embedding: bool = False
    _adapted: bool = False  # whether any sequence so far has had an adapter
    _seeing: bool = False  # or images
    hits: int = 0
    """Tokens of prompts that were not computed."""

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
    ) -> None:
        """``made``: tokens of its answer that are known already. ``adapter``: as in `Batch`; ``about``: the identity of
        its files. ``embedded``, ``scored``, ``sights``: as of `Sequence`."""
        sequence = Sequence(identity, [*prompt, *made], len(prompt), params, stepwise, adapter)
        sequence.embedded, sequence.scored, sequence.sights = embedded, scored, sights
        sequence.held = HeldBlocks(root_key(about, long=False))
        sequence.guesses.lookup = lookup_of(prompt, params.predicted)
        self._lengthen(sequence)
        self._adapted |= adapter != 0
        self._seeing |= sights is not None
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
        self._admit()
        for sequence in self.running:
            self._lengthen(sequence)
        spans: list[Span] = []
        tokens: list[int] = []
        pictures: list[Picture] = []
        share = -(-len(self.running) // self.limits.batches)  # so that every pipeline stage has a batch to work on
        room, scored = self.limits.batch_tokens, self.limits.scored
        self._embedding = self._embeds_next()
        if self._embedding and (answers := sum(not each.embedded for each in self.running)):
            room = min(room, self.limits.beside(answers))
        for sequence in sorted(self.running, key=lambda s: s.step > 1):  # long prompts must not hold up answers
            if sequence.step > 1 and spans and spans[-1].tokens - spans[-1].drafted == 1:
                room = min(room, len(tokens) + self.limits.beside(len(tokens)))
            if len(spans) >= share or len(tokens) >= room:
                break
            if sequence.embedded != self._embedding:
                continue
            if sequence.pending or sequence not in self.running:  # the second: it was just preempted
                continue
            if self.limits.whole and tokens and len(tokens) + sequence.step > room:
                break
            starts = not sequence.cached
            if starts:
                sequence.cached = sequence.held.begin(self.prefixes, self._keys(sequence))
            count = sequence.step if self.limits.whole else min(sequence.step, room - len(tokens))
            if sequence.scores(count):
                count = min(count, scored)
            if sequence.sights is not None:
                count = sequence.sights.piece(sequence.cached, sequence.cached + count) - sequence.cached
            if not count or not self._make_room(sequence, count):
                if starts:
                    self._restart(sequence)
                continue
            if sequence.held.reused is None:
                sequence.held.reused = sequence.cached
                self.hits += sequence.cached
            last = sequence.cached + count
            known = len(sequence.tokens) if starts else 0
            sample = last == len(sequence.tokens) and not sequence.embedded
            scores = sequence.scores(count)
            if sequence.sights is not None:
                pictures += sequence.sights.pictures(len(spans), sequence.cached, last)
            blocks = tuple(block.number for block in sequence.held.blocks) if starts else ()
            drafts = self._drafts(sequence, min(room - len(tokens) - share, scored) // share, share)
            new = [*sequence.tokens[sequence.cached : last], *drafts]
            spans.append(Span(sequence.identity, sequence.cached, len(new), sample, known, scores, blocks, len(drafts)))
            scored -= count * scores + len(drafts)
            tokens += new
            sequence.pending, sequence.rejected = len(new), 0
        if not spans:
            return None
        kind = Kind.EMBED if self._embedding else Kind.RUN
        batch = Batch(tuple(spans), tuple(tokens), (), kind, self._adapters(spans))
        return self._ordered(structs.replace(batch, pictures=tuple(pictures), axes=self._axes(spans)))

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
        limits, spans = self.limits, []
        for span in batch.spans:
            sequence = self.by_identity.get(span.sequence)
            if sequence is None or sequence.cancelled or not span.sample:
                return None
            if self.speculation is not None and not self.speculation.may_run_ahead(sequence):
                return None
            tokens, most = len(sequence.tokens) + 1, sequence.params.max_tokens
            lengthened = limits.short is not None and not sequence.long and tokens > limits.short
            if tokens >= limits.context or (most is not None and sequence.generated + 1 >= most) or lengthened:
                return None
            spans.append(Span(sequence.identity, tokens - 1, 1, True))
        if not self._free(len(spans)):
            return None
        zeros, axes = (0,) * len(spans), self._axes(spans)
        return self._with_orders(Batch(tuple(spans), zeros, adapters=batch.adapters, axes=axes))

    def begin(self, batch: Batch) -> None:
        """``batch``, of `following`, was started before the one that it follows was complete, as that is now."""
        self._told(batch)
        for span in batch.spans:
            sequence = self.by_identity.get(span.sequence)
            if sequence is not None:
                sequence.pending = span.tokens

    def complete(
        self, batch: Batch, sampled: Tokens[int], counts: Tokens[int] = ()
    ) -> list[tuple[Sequence, int, FinishReason | None]]:
        """Take in the tokens sampled for the spans of ``batch`` that wanted some. ``counts``: how many for each of
        these, if not one: those that were guessed right, and one more.

        Returns (sequence, token, why it ended or None) for each token of a sequence that is still wanted.
        """
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
                room = self.limits.cache_tokens - self._used()
                sequence.held.keep(self.prefixes, sequence.identity, sequence.tokens, full, room)
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

    def idle_batch(self) -> Batch:
        """What the ranks are to do, when no batch follows that would say so."""
        return self._ordered(Batch(kind=Kind.IDLE))

    def seeks(self) -> bool:
        """Whether blocks of a sequence may be on disk, and were not looked for: see `read_batch`."""
        return bool(self.prefixes.stored) and any(True for _ in self._seekers())

    def read_batch(self) -> tuple[Sequence, Batch] | None:
        """A batch of `Kind.READ` that reads what a sequence can begin with; None where there is none, or where that
        would take longer than to compute it. No other may be under way."""
        for sequence in list(self._seekers()):
            sequence.held.sought = True
            found = self.prefixes.to_read(self._keys(sequence), self.limits.cache_tokens - self._used())
            if found:
                return sequence, self._ordered(Batch(kind=Kind.READ, read=found))
        return None

    def have_read(self, sequence: Sequence, batch: Batch, count: int) -> None:
        """All ranks have read the first ``count`` blocks of ``batch``, of `read_batch`."""
        self.prefixes.have_read(self._keys(sequence), batch.read, count)

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

    def _adapters(self, spans: Tokens[Span]) -> tuple[int, ...]:
        if not self._adapted:
            return ()
        numbers = tuple(self.by_identity[span.sequence].adapter for span in spans)
        return numbers if any(numbers) else ()

    def _axes(self, spans: Tokens[Span]) -> tuple[int, ...]:
        """As of `Batch`."""
        if not self._seeing:
            return ()
        sights = [self.by_identity[span.sequence].sights for span in spans]
        if not any(each is not None and each.axes is not None for each in sights):
            return ()
        parts = [
            np.broadcast_to(np.arange(span.seen, span.seen + span.tokens), (3, span.tokens))
            if each is None or each.axes is None
            else each.axes.of(span.seen, span.seen + span.tokens)
            for span, each in zip(spans, sights, strict=True)
        ]
        return tuple(np.concatenate(parts, axis=1).ravel().tolist())

    def _used(self) -> int:
        """Tokens that the caches hold: of blocks that sequences share once."""
        shared = 0 if self.prefixes.copies else BLOCK
        own = sum(each.cached + each.pending + each.rejected - shared * len(each.held.blocks) for each in self.running)
        return own + self.prefixes.tokens

    def _free(self, count: int) -> bool:
        """Whether there is room for ``count`` more tokens, in the place of blocks that no sequence has if need be."""
        missing = self._used() + count - self.limits.cache_tokens
        return missing <= 0 or self.prefixes.evict(-(-missing // BLOCK)) * BLOCK >= missing

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.limits.sequences:
            needed = len(self.waiting[0].tokens) + 1
            held = sum(len(sequence.tokens) + 1 for sequence in self.running)
            if self.running and held + needed > self.limits.cache_tokens:
                return
            self.running.append(self.waiting.popleft())

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Preempt younger sequences until ``count`` more tokens fit. False where that cannot be done now."""
        while not self._free(count - sequence.rejected):
            younger = [s for s in self.running[self.running.index(sequence) + 1 :] if s.cached and not s.pending]
            if not younger:
                return self._used() - sequence.rejected == sequence.cached  # alone: it may fill the cache
            self._preempt(younger[-1])
        return True

    def _lengthen(self, sequence: Sequence) -> None:
        """Start a sequence that has become a long one again: all its keys get other frequencies."""
        border = self.limits.short
        if border is None or sequence.long or sequence.pending or len(sequence.tokens) <= border:
            return
        if sequence.cached:
            self._released.append(sequence.identity)
        self._restart(sequence)
        sequence.held.lengthen()
        sequence.long, sequence.whole = True, border + 1

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._released.append(sequence.identity)
        self._restart(sequence)
        self.waiting.appendleft(sequence)

    def _remove(self, sequence: Sequence) -> None:
        del self.by_identity[sequence.identity]
        if sequence in self.running:
            self.running.remove(sequence)
            if sequence.cached:
                self._released.append(sequence.identity)
            self._restart(sequence)
        else:
            self.waiting.remove(sequence)

    def _keys(self, sequence: Sequence) -> list[bytes]:
        """Of the blocks that ``sequence`` may begin with: its last token is computed, and so are all whose
        log-probabilities are wanted."""
        if not self.prefixes.enabled or not sequence.shares or sequence.scores(sequence.prompt):
            return []
        return sequence.held.keys_of(sequence.tokens, (len(sequence.tokens) - 1) // BLOCK)

    def _restart(self, sequence: Sequence) -> None:
        """It is to be computed from its first token on, if it has not ended."""
        sequence.held.end(self.prefixes)
        sequence.cached = sequence.rejected = 0

    def _seekers(self) -> Iterator[Sequence]:
        """Sequences that have not begun, and for which blocks were not looked for on disk."""
        for sequence in (*self.running, *self.waiting):
            if sequence.shares and not (sequence.cached or sequence.pending or sequence.held.sought):
                yield sequence

    def _with_orders(self, batch: Batch) -> Batch:
        orders = self.prefixes.orders()
        return structs.replace(
            batch,
            released=tuple(self._released),
            kept=orders.kept,
            dropped=orders.dropped,
            forgotten=orders.forgotten,
        )

    def _told(self, batch: Batch) -> None:
        """The ranks are told ``batch``."""
        del self._released[: len(batch.released)]
        self.prefixes.told(Orders(batch.kept, batch.dropped, batch.forgotten))

    def _ordered(self, batch: Batch) -> Batch:
        """``batch`` with all that the ranks are to do before it, which they are told so."""
        told = self._with_orders(batch)
        self._told(told)
        return told

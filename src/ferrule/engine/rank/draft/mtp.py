"""Guesses by the model's own layer for multi-token prediction (DeepSeek-V3 Technical Report, 2024, section 2.2), which
computes a token together with the model's hidden state before it: so what it keeps of a sequence grows with what the
model has computed. Its guesses behind the first one have its own results before them (as in vLLM and SGLang), and are
computed once more where they come true. Blocks of the prefix cache are kept here as they are there.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ferrule.engine.rank.batch import Batch, Kind, Span
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.draft.mirror import Mirror
from ferrule.engine.rank.driver.pace import Line
from ferrule.engine.rank.runner import Runner
from ferrule.engine.rank.sequence import Sequence

PIECE = 64
"""Tokens whose hidden states may wait to be computed with, of a sequence that is not guessed for now."""


@dataclass
class Followed:
    """A sequence in the layer's cache, which begins with its token number ``first`` (1, or later where something before
    is missing) and has ``known`` of them. ``waiting``: the model's hidden states, (tokens, width), before those that
    come next; of guesses that were wrong, too, until it has computed what is there instead. ``newest``: that before the
    last one. ``blocks``: with which it is to begin."""

    first: int
    waiting: Tensor
    newest: Tensor
    known: int = 0
    blocks: tuple[int, ...] = ()

    @property
    def place(self) -> int:
        """The token that the first waiting hidden state is of."""
        return self.first + self.known - 1

    def take(self, place: int, hidden: Tensor) -> bool:
        """The model has computed ``hidden``, of the tokens from number ``place`` on. False: some before are missing."""
        kept, known = place - self.place, self.place - place
        if kept > len(self.waiting):
            return False
        if known < len(hidden):
            self.waiting = torch.cat((self.waiting[: max(0, kept)], hidden[max(0, known) :]))
        return True

    def ready(self, sequence: Sequence) -> int:
        """How many tokens can be computed: that are known, behind hidden states that are right."""
        right = min(sequence.cached, len(sequence.tokens) - 1) - self.place
        return max(0, min(right, len(self.waiting)))

    def computed(self, count: int) -> None:
        """The next ``count`` tokens are in the cache now."""
        self.newest = self.waiting[count - 1 : count].clone()
        self.waiting = self.waiting[count:].clone()
        self.known += count
        self.blocks = ()

    def begin_anew(self) -> None:
        """Of what is in the cache, or was to be, nothing is there."""
        self.first, self.known, self.blocks = self.place + 1, 0, ()

    def once_more(self) -> None:
        """The last token is to be computed again, for what follows it."""
        self.waiting, self.known = self.newest, self.known - 1


class _Part(NamedTuple):
    """Part of a step that is of one sequence, of which the cache has ``seen`` tokens: ``tokens``, and the hidden states
    before them. ``known``, ``blocks``: as of `Span`."""

    identity: int
    seen: int
    tokens: list[int]
    hidden: Tensor
    known: int = 0
    blocks: tuple[int, ...] = ()

    @classmethod
    def of(cls, sequence: Sequence, followed: Followed, count: int) -> _Part:
        """The next ``count`` tokens of ``sequence``."""
        begin = followed.first + followed.known
        tokens = sequence.tokens[begin : begin + count]
        starts = followed.blocks or not followed.known
        known = len(sequence.tokens) - followed.first if starts else 0
        return cls(sequence.identity, followed.known, tokens, followed.waiting[:count], known, followed.blocks)


@dataclass
class MtpDraft:
    """``runner``: of the layer; ``model``: of the model. ``longest``: of a sequence, the most tokens; ``room``: of the
    cache; ``most``: of a step. ``seconds``: of a step that guesses one token, by the number of sequences."""

    runner: Runner
    model: Runner
    longest: int
    room: int
    most: int
    seconds: Line = field(default_factory=lambda: Line(0.0))
    followed: dict[int, Followed] = field(default_factory=dict)
    mirrored: Mirror = field(default_factory=Mirror)
    _released: list[int] = field(default_factory=list)

    def ran(self, batch: Batch) -> None:
        """The model has run ``batch``: take the hidden states of its tokens."""
        for block in self.mirrored.told(batch):
            for each in self.followed.values():
                if block in each.blocks:
                    each.begin_anew()
        if batch.kind is not Kind.RUN or not batch.spans:
            return
        hidden = self.model.hidden_states(range(len(batch.tokens)))
        begin = 0
        for span in batch.spans:
            rows = hidden[begin : begin + span.tokens]
            begin += span.tokens
            known = self.followed.get(span.sequence)
            if known is None or span.blocks or not known.take(span.seen, rows):
                self._forget(span.sequence)
                held = self.mirrored.held(span.blocks)
                size = BLOCK * len(held)
                self.followed[span.sequence] = Followed(span.seen + 1 - size, rows.clone(), rows[:0], size, held)

    def follow(self, running: Collection[Sequence]) -> None:
        """Forget all sequences but those ``running``, and compute the long pieces of these that wait: of prompts."""
        identities = {each.identity for each in running}
        for identity in [each for each in self.followed if each not in identities]:
            self._forget(identity)
        for sequence in running:
            followed = self.followed.get(sequence.identity)
            if followed is None or followed.ready(sequence) < PIECE:
                continue
            if not self._has_room(followed, followed.ready(sequence)):
                self._forget(sequence.identity)
                continue
            while (count := min(followed.ready(sequence) - 1, self.most)) > 0:  # one is left to guess behind
                self._run([_Part.of(sequence, followed, count)], sample=False)
                followed.computed(count)

    def guess(self, wanted: Mapping[Sequence, int], ends: Collection[int], piece: int) -> dict[int, list[int]]:
        """See `Drafts.guess`. ``piece`` is not needed: `follow` leaves short ones only."""
        begin = time.perf_counter()
        parts, most = self._first(wanted), {sequence.identity: count for sequence, count in wanted.items()}
        rounds, answers = 0, len(parts)
        guesses: dict[int, list[int]] = {}
        while parts:
            chosen, hidden = self._run(parts, sample=True)
            if not rounds:
                for part in parts:
                    self.followed[part.identity].computed(len(part.tokens))
            rounds += 1
            following = []
            for row, (part, token) in enumerate(zip(parts, chosen, strict=True)):
                if token in ends:
                    continue
                found = guesses.setdefault(part.identity, [])
                found.append(token)
                if len(found) < most[part.identity]:
                    seen = part.seen + len(part.tokens)
                    following.append(_Part(part.identity, seen, [token], hidden[row : row + 1]))
            parts = following
        if rounds:
            self.seconds.measured(answers, (time.perf_counter() - begin) / rounds)
        return guesses

    def _first(self, wanted: Mapping[Sequence, int]) -> list[_Part]:
        """Of each sequence that has all hidden states up to its last token, and room, what is not in the cache."""
        parts: list[_Part] = []
        used = 0
        for sequence, count in wanted.items():
            followed = self.followed.get(sequence.identity)
            if followed is None:
                continue
            if followed.known and followed.first + followed.known == len(sequence.tokens):
                followed.once_more()
            ready = followed.ready(sequence)
            complete = ready > 0 and followed.first + followed.known + ready == len(sequence.tokens)
            if not complete or used + ready > self.most:
                continue
            if not self._has_room(followed, ready + count):
                self._forget(sequence.identity)
                continue
            parts.append(_Part.of(sequence, followed, ready))
            used += ready
        return parts

    def _has_room(self, followed: Followed, more: int) -> bool:
        held = sum(each.known for each in self.followed.values() if not each.blocks)
        return followed.known + more <= self.longest and held + more <= self.room

    def _forget(self, identity: int) -> None:
        known = self.followed.pop(identity, None)
        if known is not None and known.known and not known.blocks:
            self.mirrored.keep(identity, known.known if known.first == 1 else 0)
            self._released.append(identity)
        self.mirrored.forget(identity)

    def _run(self, parts: list[_Part], *, sample: bool) -> tuple[list[int], Tensor]:
        """The likeliest token behind each part, where they are to be sampled, and what the last norm gives there."""
        for identity, each in self.followed.items():
            if each.first == 1 and not each.blocks:
                self.mirrored.keep(identity, each.known)
        if self.mirrored.clash:
            self.runner.run(Batch(dropped=self.mirrored.take_dropped()))
        spans = tuple(
            Span(each.identity, each.seen, len(each.tokens), sample, each.known, blocks=each.blocks) for each in parts
        )
        tokens = tuple(token for each in parts for token in each.tokens)
        released, self._released = tuple(self._released), []
        kept, dropped = self.mirrored.take_kept(), self.mirrored.take_dropped()
        batch = Batch(spans, tokens, released, kept=kept, dropped=dropped)
        hidden = torch.cat([each.hidden for each in parts])
        self.runner.follow(hidden)
        logits = self.runner.run(batch)
        assert logits is not None  # it is whole
        if not sample:
            return [], hidden[:0]
        with torch.inference_mode():
            likeliest = logits.argmax(dim=-1)
        chosen: list[int] = self.runner.device.download(likeliest).tolist()
        return chosen, self.runner.hidden_states(batch.logit_rows())

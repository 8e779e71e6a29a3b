"""A draft model's guesses: tokens that it finds likeliest, one after the other, for several sequences at once. What it
keeps of each follows what that has become: guesses that were wrong are cut off, what it has not seen is computed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.driver.pace import Line
from ferrule.engine.rank.runner import Runner
from ferrule.engine.rank.sequence import Sequence


@dataclass
class Kept:
    """Of a sequence in the draft model's cache: its first ``tokens``, and ``guesses`` behind them."""

    tokens: int = 0
    guesses: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.tokens + len(self.guesses)

    def settle(self, tokens: list[int]) -> None:
        """The sequence has become ``tokens``: of the guesses those stay that came true, and one token at least is left
        to be computed."""
        right = 0
        for guess, token in zip(self.guesses, tokens[self.tokens :], strict=False):
            if guess != token:
                break
            right += 1
        self.tokens, self.guesses = min(self.tokens + right, len(tokens) - 1), []


@dataclass
class DraftModel:
    """``vocabulary``: tokens that both models have; ``longest``: of a sequence, the most that it takes; ``room``: of
    its cache; ``most``: of a step. ``seconds``: of a step that guesses one token, by the number of sequences."""

    runner: Runner
    vocabulary: int
    longest: int
    room: int
    most: int
    seconds: Line = field(default_factory=lambda: Line(0.0))
    kept: dict[int, Kept] = field(default_factory=dict)
    _released: list[int] = field(default_factory=list)

    def ran(self, batch: Batch) -> None:
        """See `Drafts.ran`: tokens are all that it asks for."""

    def follow(self, running: Collection[Sequence]) -> None:
        """See `Drafts.follow`."""
        self.keep({each.identity for each in running})

    def keep(self, identities: Collection[int]) -> None:
        """Forget all other sequences."""
        for identity in [each for each in self.kept if each not in identities]:
            del self.kept[identity]
            self._released.append(identity)

    def guess(self, wanted: Mapping[Sequence, int], ends: Collection[int], piece: int) -> dict[int, list[int]]:
        """What may follow each sequence, by identity, at most as many tokens as are ``wanted``: up to one of ``ends``.

        Of those that the cache lacks more of than a step has guesses, ``piece`` tokens are computed in all, and what is
        left the next time; until then nothing is guessed. Nor where there is no room, or the text is too long."""
        begin = time.perf_counter()
        spans, tokens, catching_up = self._first(wanted, piece)
        guesses: dict[int, list[int]] = {}
        most = {sequence.identity: count for sequence, count in wanted.items()}
        rounds, answers = 0, 0
        while spans:
            chosen = self._step(spans, tokens)
            asking = [span.sequence for span in spans if span.sample]
            rounds, answers = rounds + 1, max(answers, len(asking))
            spans, tokens = [], []
            for identity, token in zip(asking, chosen, strict=True):
                if token in ends:
                    continue
                found, kept = guesses.setdefault(identity, []), self.kept[identity]
                found.append(token)
                if len(found) < most[identity]:
                    spans.append(Span(identity, kept.size, 1, True))
                    tokens.append(token)
                    kept.guesses.append(token)
        if rounds and not catching_up:
            self.seconds.measured(answers, (time.perf_counter() - begin) / rounds)
        return guesses

    def _first(self, wanted: Mapping[Sequence, int], piece: int) -> tuple[list[Span], list[int], bool]:
        """The step of what is not in the cache, and whether it is more than what sequences had in one step."""
        spans: list[Span] = []
        tokens: list[int] = []
        used, behind_any = sum(each.size for each in self.kept.values()), False
        for sequence, count in wanted.items():
            kept = self.kept.get(sequence.identity, Kept())
            used -= kept.size
            kept.settle(sequence.tokens)
            known, last = kept.tokens, len(sequence.tokens)
            unknown = sequence.tokens[known:]
            needed = last + count
            if needed > self.longest or used + needed > self.room or not self._knows(unknown):
                used += kept.size
                continue
            if last - known > count + 1:
                behind_any = True
                unknown = unknown[:piece]
                piece -= len(unknown)
            unknown = unknown[: self.most - len(tokens)]
            if not unknown:
                used += kept.size
                continue
            complete = known + len(unknown) == last
            # All of it may be seen by layers that ask how long it will be.
            spans.append(Span(sequence.identity, known, len(unknown), complete, last if not known else 0))
            tokens += unknown
            kept.tokens = known + len(unknown)
            self.kept[sequence.identity] = kept
            used += needed
        return spans, tokens, behind_any

    def _knows(self, tokens: Iterable[int]) -> bool:
        return all(token < self.vocabulary for token in tokens)

    def _step(self, spans: list[Span], tokens: list[int]) -> list[int]:
        """Run it. Returns the likeliest token of each span that asks for one."""
        batch = Batch(tuple(spans), tuple(tokens), tuple(self._released))
        self._released = []
        logits = self.runner.run(batch)
        assert logits is not None  # it is whole
        with torch.inference_mode():
            likeliest = logits[:, : self.vocabulary].argmax(dim=-1)
        chosen: list[int] = self.runner.device.download(likeliest).tolist()
        return chosen

"""Verification of guessed tokens: each place is sampled as it would be without guesses, and what comes after the first
token that was guessed wrong is dropped. So an answer is the same, token by token, whatever is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ferrule.engine.devices import Device
from ferrule.engine.grammar import GrammarError
from ferrule.engine.rank.sampling.sampler import Choice, Choices, Sampler


class Wanted(NamedTuple):
    """Tokens wanted of a sequence: ``sampler``, its ``tokens``, how many of these were given, and the ``drafts`` that
    may follow. Logits are there after its tokens and after each draft."""

    sampler: Sampler
    tokens: Sequence[int]
    prompt: int
    drafts: Sequence[int] = ()

    def before(self, place: int) -> Sequence[int]:
        """Its tokens before the one at ``place`` of those that are wanted, if all guesses until there are right; but
        only where what is chosen depends on them: there may be many."""
        return [*self.tokens, *self.drafts[:place]] if place and self.sampler.looks_back else self.tokens

    def wrong(self, place: int, choice: Choice) -> bool:
        """Whether nothing that was computed follows ``choice``."""
        return place == len(self.drafts) or choice.token != self.drafts[place]


def verify(device: Device, logits: Tensor, wanted: Sequence[Wanted]) -> list[list[Choice]]:
    """The next tokens of each sequence, those that were guessed right and one more, from ``logits`` (rows, vocabulary)
    on ``device``. Raises `EngineError` where no logit of one is a number.

    In host memory a place is looked at when it is known to count; on a device all are sampled at once, as each look
    waits for it, but those that follow a grammar, whose masks need the tokens before.
    """
    borders = list(accumulate((1 + len(each.drafts) for each in wanted), initial=0))
    found: list[list[Choice]] = []
    there: list[tuple[int, int]] = []  # places of sequences, of those that are sampled on the device
    for number, (one, (first, end)) in enumerate(zip(wanted, pairwise(borders), strict=True)):
        if logits.is_cpu:
            found.append(_one_by_one(one, logits[first:end]))
        elif one.drafts and one.sampler.matcher is not None:
            found.append(_one_by_one(one, device.download(logits[first:end])))
        else:
            found.append([])
            there += [(number, place) for place in range(end - first)]
    if not there:
        return found
    asked = [(wanted[number].sampler, wanted[number].before(place), wanted[number].prompt) for number, place in there]
    rows = device.upload(torch.tensor([borders[number] + place for number, place in there]))
    over: set[int] = set()
    chosen = Choices(device, logits.index_select(0, rows), asked).read()
    for (number, place), choice in zip(there, chosen, strict=True):
        if number in over:
            wanted[number].sampler.give_back(1)
            continue
        found[number].append(choice)
        if wanted[number].wrong(place, choice):
            over.add(number)
    return found


def _one_by_one(one: Wanted, rows: Iterable[Tensor]) -> list[Choice]:
    """A token from each of ``rows``, in host memory, up to the first wrong guess."""
    made: list[Choice] = []
    for place, row in enumerate(rows):
        try:
            made.append(one.sampler.choose(row, one.before(place), one.prompt))
        except GrammarError:  # it has become too complex, behind a token that counts: the next step says so
            if not made:
                raise
            break
        if one.wrong(place, made[-1]):
            break
    return made

"""Verification: tokens are drawn as they are without guesses, whatever is guessed, in host memory and on a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare
from torch import Tensor

from ferrule.engine.devices import open_device
from ferrule.engine.grammar import GrammarError
from ferrule.engine.rank.sampling.sampler import Sampler
from ferrule.engine.rank.sampling.verify import Wanted, verify
from ferrule.engine.types import SamplingParams

CPU = open_device("cpu", 1)
PROMPT = (3, 1)
TOKENS = 6


class Elsewhere:
    """A device whose tensors the CPU has, so that rows are sampled together."""

    torch_device = torch.device("cpu")

    def upload(self, host: Tensor) -> Tensor:
        return host

    def download(self, there: Tensor) -> Tensor:
        return there

    def download_later(self, there: Sequence[Tensor]) -> Any:
        return lambda: list(there)


class There(Tensor):
    """Logits that say they are not in host memory."""

    is_cpu = False  # type: ignore[assignment]


def logits_after(tokens: Sequence[int]) -> Tensor:
    """A pretended model of five tokens, each of which depends on the last two."""
    return torch.tensor([(tokens[-1] * 7 + tokens[-2] * 3 + token * token * 5) % 9 / 3 for token in range(5)])


def answer(params: SamplingParams, count: int, guessed: Sequence[Sequence[int]], *, there: bool = False) -> list[int]:
    """``count`` tokens; in each step the next ones of ``guessed`` are guessed."""
    sampler, tokens, steps = Sampler(params), list(PROMPT), iter(guessed)
    while len(tokens) < len(PROMPT) + count:
        drafts = tuple(next(steps, ()))
        rows = torch.stack([logits_after([*tokens, *drafts[:place]]) for place in range(len(drafts) + 1)])
        given: Any = rows.as_subclass(There) if there else rows
        device: Any = Elsewhere() if there else CPU
        (made,) = verify(device, given, [Wanted(sampler, tokens, len(PROMPT), drafts)])
        assert tuple(each.token for each in made[:-1]) == drafts[: len(made) - 1]
        tokens += [each.token for each in made]
    return tokens[len(PROMPT) :][:count]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, logprobs=2),
        SamplingParams(seed=5),
        SamplingParams(seed=6, top_p=0.8, frequency_penalty=0.7, repetition_penalty=1.2),
    ],
)
def test_a_seed_gives_the_same_tokens_whatever_is_guessed(params: SamplingParams, there: bool) -> None:
    expected = answer(params, 40, ())
    right = [expected[place : place + 3] for place in range(0, 40, 4)]
    assert answer(params, 40, right, there=there) == expected
    for shift in range(1, 5):
        wrong = [[(token + shift) % 5 for token in some] for some in right]
        half = [[*some[:1], *other[1:]] for some, other in zip(right, wrong, strict=True)]
        for guessed in (wrong, half):
            assert answer(params, 40, guessed, there=there) == expected


@pytest.mark.parametrize("there", [False, True])
def test_the_distribution_is_the_models(there: bool) -> None:
    """Of three tokens together, at temperature 1, of which two are guessed: always the same ones, as a lookup does."""
    draws = 400 if there else 2000
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        expected = {
            (*made, token): chance * float(part)
            for made, chance in expected.items()
            for token, part in enumerate(logits_after([*PROMPT, *made]).softmax(-1))
        }
    likely = sorted(expected, key=lambda made: -expected[made])[:12]
    found = Counter(tuple(answer(SamplingParams(seed=seed), 3, [likely[0][:2]], there=there)) for seed in range(draws))
    counts = [found[made] for made in likely]
    told = [draws * expected[made] for made in likely]
    rest = [draws - sum(counts)], [draws - sum(told)]
    assert chisquare([*counts, *rest[0]], [*told, *rest[1]]).pvalue > 1e-3
    assert found[likely[0]] > 0


class Complex:
    """A grammar that gets too complex after some tokens."""

    def __init__(self, after: int) -> None:
        self.left = after

    def mask(self) -> NDArray[np.uint8]:
        if not self.left:
            raise GrammarError("too complex")
        return np.packbits([False, True, True, True, True], bitorder="little")

    def took(self, token: int) -> None:
        self.left -= 1


@pytest.mark.parametrize("there", [False, True])
def test_tokens_before_a_grammar_fails_count(there: bool) -> None:
    plain = Sampler(SamplingParams(temperature=0.0, logit_bias={2: 50.0}))
    plain.matcher = Complex(2)  # type: ignore[assignment]
    rows = torch.zeros(5, 5)
    given: Any = rows.as_subclass(There) if there else rows
    device: Any = Elsewhere() if there else CPU
    other = Wanted(Sampler(SamplingParams(temperature=0.0)), PROMPT, 2)
    made = verify(device, given, [Wanted(plain, PROMPT, 2, (2, 2, 2)), other])
    assert [[each.token for each in one] for one in made] == [[2, 2], [0]]

"""Sampling on an accelerator gives the tokens that the native library gives, from one wait of the host."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from plugged import plug_in

from ferrule.engine.devices.emulated.device import EmulatedDevice
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.engine.rank.sampling import device as device_sampling
from ferrule.engine.rank.sampling.sampler import Sampler, choose_all
from ferrule.engine.types import SamplingParams
from ferrule.errors import EngineError

HOW = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.3, logprobs=0),
    SamplingParams(seed=3, temperature=2.0, top_k=7),
    SamplingParams(seed=4, top_k=5000),
    SamplingParams(seed=5, top_p=0.9, logprobs=5),
    SamplingParams(seed=6, top_p=0.0),
    SamplingParams(seed=7, temperature=1.5, top_k=40, top_p=0.5),
    SamplingParams(seed=8, min_p=0.02),
    SamplingParams(seed=9, temperature=0.8, top_k=300, top_p=0.95, min_p=0.01, repetition_penalty=1.3),
    SamplingParams(seed=10, temperature=1e-6, presence_penalty=0.7, frequency_penalty=0.4, logprobs=1),
    SamplingParams(seed=11, frequency_penalty=-0.4, logit_bias={3: 2.5, 5: -100.0, 10**6: 3.0}, logprobs=2),
]
TOKENS = [3, 5, 5, 8, 13, 5, 3]


def device(seed: int | None = None) -> EmulatedDevice:
    EmulatedDevice()  # so that torch knows it
    plug_in(Machine(0, seed=seed))
    return EmulatedDevice()


def drawn(one: EmulatedDevice, logits: torch.Tensor, how: list[SamplingParams], turns: int) -> None:
    """On the device all together, in the native library one by one."""
    there, here = [Sampler(params) for params in how], [Sampler(params) for params in how]
    values = one.upload(logits)
    for _ in range(turns):
        waits = one.machine.timeline.waits
        found = choose_all(one, values, [(sampler, TOKENS, 3) for sampler in there])
        assert one.machine.timeline.waits - waits == 1
        for choice, sampler, row in zip(found, here, logits, strict=True):
            expected = sampler.choose(row, TOKENS, 3)
            assert choice.token == expected.token, sampler.params
            assert [token for token, _ in choice.top] == [token for token, _ in expected.top]
            assert [value for _, value in choice.top] == pytest.approx([value for _, value in expected.top], abs=1e-5)
            assert (choice.logprob is None) == (expected.logprob is None)
            if expected.logprob is not None:
                assert choice.logprob == pytest.approx(expected.logprob, abs=1e-5)
    assert one.machine.waits == {}


@pytest.mark.parametrize(
    ("vocabulary", "spread", "seed"),
    [(17, 3.0, None), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((3000, 0.01, 1), (3000, 30.0, None)))],
)
def test_the_tokens_are_those_of_the_native_library(
    vocabulary: int, spread: float, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(len(HOW), vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * spread
    drawn(device(seed), logits, HOW, turns=8)
    monkeypatch.setattr(device_sampling, "_WIDE", {"emulated": torch.float32})  # as on GPUs that have no float64
    drawn(device(seed), logits, HOW, turns=8)
    for params, row in zip(HOW, logits, strict=True):  # each kind of batch has operations of its own
        drawn(device(seed), row.unsqueeze(0), [params], turns=3)


def test_what_cannot_come_does_not_and_the_first_of_equal_ones_is_the_likeliest() -> None:
    rows = torch.tensor(
        [
            [1.0, 4.0, math.nan, 4.0],
            [-math.inf, 2.0, -math.inf, math.nan],
            [math.nan, -math.inf, -math.inf, -math.inf],
            [0.0, math.inf, 3.0, math.inf],
            [0.0, -math.inf, 0.0, math.nan],
        ]
    )
    cold, warm = SamplingParams(temperature=0.0), SamplingParams(seed=1, top_p=0.99, top_k=3)
    for params in (cold, warm, SamplingParams(seed=2, min_p=0.5)):
        drawn(device(), rows, [params] * len(rows), turns=10)
    with pytest.raises(EngineError, match="the model's logits are not numbers"):
        choose_all(device(), EmulatedDevice().upload(rows * math.nan), [(Sampler(warm), (), 0)] * len(rows))


def test_on_the_device_as_in_host_memory_a_grammar_forbids_tokens_of_its_own_sequence_only() -> None:
    bits = np.zeros(3000, np.uint8)
    bits[[7, 8, 2999]] = 1
    mask = np.packbits(bits, bitorder="little")

    class Fixed:
        taken: list[int]

        def mask(self) -> NDArray[np.uint8]:
            return mask

        def took(self, token: int) -> None:
            self.taken.append(token)

    one, values = device(), torch.randn(4, 3000, generator=torch.Generator().manual_seed(4)) * 3
    for constrained in ({0, 2}, {0, 1, 2, 3}):
        both = []
        for _ in ("there", "here"):
            samplers = [Sampler(params) for params in HOW[1:9:2]]
            for place in constrained:
                matcher = Fixed()
                matcher.taken = []
                samplers[place].matcher = matcher  # type: ignore[assignment]
            both.append(samplers)
        found = choose_all(one, one.upload(values), [(sampler, TOKENS, 3) for sampler in both[0]])
        expected = [sampler.choose(row, TOKENS, 3) for sampler, row in zip(both[1], values, strict=True)]
        assert [choice.token for choice in found] == [choice.token for choice in expected]
        assert all((found[place].token in (7, 8, 2999)) == (place in constrained) for place in range(4))
        for place in constrained:
            assert both[0][place].matcher.taken == [found[place].token]  # type: ignore[union-attr]
        for choice, other in zip(found, expected, strict=True):
            assert (choice.logprob is None) == (other.logprob is None)
            if choice.logprob is not None:
                assert choice.logprob == pytest.approx(other.logprob, abs=1e-5)

import math
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ferrule._native import sample
from ferrule.engine.rank.sampling.sampler import Sampler
from ferrule.engine.types import SamplingParams
from ferrule.errors import EngineError, RequestError

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, -1.0])


def counts(params: SamplingParams, draws: int = 400, tokens: tuple[int, ...] = (), prompt: int = 0) -> list[int]:
    sampler = Sampler(params)
    found = [0] * len(LOGITS)
    for _ in range(draws):
        found[sampler.choose(LOGITS, tokens, prompt).token] += 1
    return found


def test_temperature_zero_takes_the_likeliest() -> None:
    assert counts(SamplingParams(temperature=0.0), 5) == [0, 5, 0, 0, 0]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed, temperature=2.0))
        return [sampler.choose(LOGITS, (), 0).token for _ in range(50)]

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_an_answer_goes_on_with_the_same_random_numbers_in_another_sampler() -> None:
    params = SamplingParams(seed=-3, temperature=2.0)
    whole, rest = Sampler(params), Sampler(params, drawn=20)
    drawn = [whole.choose(LOGITS, (), 0).token for _ in range(50)]
    assert [rest.choose(LOGITS, (), 0).token for _ in range(30)] == drawn[20:]


def test_tokens_are_drawn_as_often_as_the_distribution_says() -> None:
    found = counts(SamplingParams(seed=1), 2000)
    for share, probability in zip((n / 2000 for n in found), LOGITS.softmax(-1).tolist(), strict=True):
        assert share == pytest.approx(probability, abs=0.04)


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(seed=1, temperature=5.0, top_k=2), {1, 2}),
        (SamplingParams(seed=1, top_p=0.7), {1, 2}),
        (SamplingParams(seed=1, min_p=0.3), {1, 2}),
        (SamplingParams(seed=1, temperature=5.0, top_k=1), {1}),
    ],
)
def test_cuts_leave_only_the_likely_tokens(params: SamplingParams, allowed: set[int]) -> None:
    found = counts(params)
    assert {token for token, count in enumerate(found) if count} == allowed


CUTS = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0, "top_k": 7},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"temperature": 1.5, "top_k": 400, "top_p": 0.5},
    {"min_p": 0.02},
    {"temperature": 0.8, "top_k": 300, "top_p": 0.95, "min_p": 0.01},
]


@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: ",".join(f"{key}={value}" for key, value in cuts.items()))
@pytest.mark.parametrize("vocabulary", [1, 17, 3000])
@pytest.mark.parametrize("spread", [0.01, 3.0, 30.0])
def test_the_native_sampler_draws_as_transformers_cuts(cuts: dict[str, float], vocabulary: int, spread: float) -> None:
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * spread
    how = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **cuts}
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(how["temperature"]))])
    if how["top_k"]:
        warpers.append(TopKLogitsWarper(int(how["top_k"])))
    if how["top_p"] < 1:
        warpers.append(TopPLogitsWarper(how["top_p"]))
    if how["min_p"]:
        warpers.append(MinPLogitsWarper(how["min_p"]))
    scores = warpers(torch.empty(1, 0, dtype=torch.long), logits.unsqueeze(0))[0]
    ends = scores.double().softmax(-1).cumsum(-1)
    for step in range(200):
        chance = (step + 0.5) / 200
        token = sample(logits.data_ptr(), vocabulary, how["temperature"], int(how["top_k"]), how["top_p"], how["min_p"],
                       chance)  # fmt: skip
        begin = float(ends[token - 1]) if token else 0.0
        assert begin - 1e-5 <= chance <= float(ends[token]) + 1e-5
        assert scores[token] > -math.inf


def test_what_is_as_likely_as_the_last_that_is_kept_is_kept_too() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    for how in ((1.0, 2, 1.0, 0.0), (1.0, 0, 0.4, 0.0)):
        drawn = {sample(logits.data_ptr(), 5, *how, step / 90) for step in range(90)}
        assert drawn == {1, 2, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_is_never_chosen(temperature: float) -> None:
    for length in (5, 64, 600):
        logits = torch.full((length,), math.nan)
        logits[length - 2] = -3.0
        drawn = {sample(logits.data_ptr(), length, temperature, 0, 1.0, 0.0, step / 9) for step in range(9)}
        assert drawn == {length - 2}
        logits[length - 2] = -math.inf
        assert sample(logits.data_ptr(), length, temperature, 0, 1.0, 0.0, 0.5) == length - 2
        logits[length - 2] = math.nan
        assert sample(logits.data_ptr(), length, temperature, 0, 1.0, 0.0, 0.5) == -1


def test_openais_penalties_look_at_the_answer_and_not_at_the_prompt() -> None:
    once = SamplingParams(temperature=0.0, presence_penalty=1.5)
    assert Sampler(once).choose(LOGITS, (1, 1, 1), 3).token == 1
    assert Sampler(once).choose(LOGITS, (9, 1), 1).token == 2
    often = SamplingParams(temperature=0.0, frequency_penalty=0.6)
    assert Sampler(often).choose(LOGITS, (9, 1), 1).token == 1
    assert Sampler(often).choose(LOGITS, (9, 1, 1), 1).token == 2


def test_the_repetition_penalty_looks_at_the_prompt_too() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert Sampler(params).choose(LOGITS, (1,), 1).token == 2


def test_a_bias_moves_a_token_and_one_beyond_the_vocabulary_is_ignored() -> None:
    params = SamplingParams(temperature=0.0, logit_bias={3: 10.0, 10_000: 5.0})
    assert Sampler(params).choose(LOGITS, (), 0).token == 3


def test_logprobs_are_those_of_the_model_whatever_was_cut() -> None:
    params = SamplingParams(temperature=0.0, logprobs=2, logit_bias={0: 100.0})
    choice = Sampler(params).choose(LOGITS, (), 0)
    expected = LOGITS.log_softmax(-1)
    assert choice.token == 0
    assert choice.logprob == pytest.approx(float(expected[0]))
    assert [token for token, _ in choice.top] == [1, 2]
    assert math.isclose(choice.top[0][1], float(expected[1]), abs_tol=1e-6)
    assert Sampler(SamplingParams(logprobs=0)).choose(LOGITS, (), 0).top == ()


@pytest.mark.parametrize("extreme", [{"temperature": 1e-40}, {"repetition_penalty": 1e-40}, {"logit_bias": {1: 1e39}}])
def test_extreme_numbers_give_a_token_and_no_exception(extreme: dict[str, Any]) -> None:
    assert counts(SamplingParams(**extreme), 3, tokens=(1,)) == [0, 3, 0, 0, 0]


def test_logits_that_are_not_numbers_are_named() -> None:
    with pytest.raises(EngineError, match="not numbers"):
        Sampler(SamplingParams()).choose(LOGITS * math.nan, (), 0)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"temperature": math.nan}, {"top_p": 1.5}, {"min_p": 2.0}, {"repetition_penalty": 0.0}],
)
def test_numbers_with_which_no_token_can_be_chosen_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))):
        SamplingParams(**wrong)

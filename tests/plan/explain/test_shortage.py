"""When nothing fits, what is missing is told, and what would fit does."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ferrule.errors import PlanError
from ferrule.model import ModelSpec, read_model
from ferrule.plan import BUILT_IN_ENGINE, ClusterSpec, DeviceSpec, PairSpec, Question, RailSpec, Workload, search
from ferrule.plan.explain import Nearest, shortage

GB = 10**9


def stored_as(weights: str) -> ModelSpec:
    model = read_model("llama-3.2-3b", weights=weights)
    return replace(model, decoder=model.decoder[:6])


MODEL = stored_as("bfloat16")  # 1.9 GB


def hosts(*memory: float) -> ClusterSpec:
    devices = tuple(DeviceSpec(f"m{i}", int(size * GB), 2e11, {"bf16": 2e13}) for i, size in enumerate(memory))
    rail = RailSpec("eth", 3e-5, 2e9)
    pairs = tuple(PairSpec((a.name, b.name), (rail,)) for a, b in itertools.combinations(devices, 2))
    return ClusterSpec(devices, pairs)


def ask(cluster: ClusterSpec, **work: int) -> Question:
    lighter = tuple((weights, stored_as(weights)) for weights in ("int8", "int4"))
    engine = replace(BUILT_IN_ENGINE, name="one that runs any plan", cache_share=1.0, cache_ahead=0)
    return Question(
        MODEL, cluster, Workload(**({"context": 256, "prompt": 32} | work)), runtime=engine, lighter=lighter
    )


def by_kind(question: Question) -> dict[str, Nearest]:
    """By the first words of what is changed."""
    return {" ".join(each.text.split()[:2]): each for each in shortage(question).nearest}


def test_nothing_is_missing_where_it_fits() -> None:
    with pytest.raises(PlanError, match="fits; nothing is missing"):
        shortage(ask(hosts(8.0)))


def test_what_the_hosts_lack_together_is_enough() -> None:
    found = shortage(ask(hosts(0.7, 0.6)))
    uses = found.closest.prediction.memory
    assert len(uses) == 2, "two hosts miss less than one"
    assert found.missing == max(-use.margin for use in uses)
    missing = sum(max(0, -use.margin) for use in uses)
    enough = hosts(*(each + missing / GB + 0.01 for each in (0.7, 0.6)))
    assert search(ask(enough)).best is not None


def test_a_shorter_context_is_found_and_one_token_more_does_not_fit() -> None:
    question = ask(hosts(2.5), context=100_000)
    shorter = next(each for text, each in by_kind(question).items() if text.endswith("tokens"))
    context = shorter.question.work.context
    assert shorter.candidate.prediction.fits
    assert 1 < context < question.work.context
    assert search(question.with_work(context=context + 1)).best is None


def test_lighter_weights_and_one_more_host_are_offered_where_they_help() -> None:
    found = by_kind(ask(hosts(1.0, 0.8)))
    assert set(found) == {"weights as", "one more"}, "not even the weights fit, so no shorter context does"
    assert found["weights as"].text.startswith("weights as int8: ")
    assert found["weights as"].candidate.prediction.fits
    assert found["one more"].text == "one more host like m0"
    assert "m0-2" in found["one more"].candidate.plan.devices


def test_what_does_not_help_is_not_offered() -> None:
    assert shortage(ask(hosts(0.1))).nearest == ()

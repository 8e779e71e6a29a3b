"""What the planner knows of engines other than ours: their kernels by maker, what they exchange, and how sure it is."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import combinations

import pytest

from ferrule.errors import PlanError
from ferrule.model import ModelSpec, Share, read_model
from ferrule.model.families.family import FAMILIES
from ferrule.plan import RUNTIMES, ClusterSpec, DeviceSpec, PairSpec, Plan, Question, RailSpec, Stage, Workload, predict
from ferrule.plan.cluster.profile import cluster_from_profile
from ferrule.plan.cost.interval import MEASURED, NEVER_MEASURED, NOT_COMPARED, SPREADS, UNKNOWN_FAMILY
from ferrule.plan.kernels import Kernels, with_others
from ferrule.plan.prediction import Prediction

MLX, VLLM, OURS = RUNTIMES["mlx"], RUNTIMES["vllm"], RUNTIMES["ferrule"]
NAMES = ("a", "b")
DENSE = read_model("llama-3.1-8b")
DELTA = read_model("qwen3-next-80b-a3b")


def device(name: str, maker: str = "nvidia", **figures: object) -> DeviceSpec:
    return DeviceSpec(name, 256 << 30, 200e9, {"bf16": 50e12}, maker=maker, **figures)  # type: ignore[arg-type]


def ask(model: ModelSpec, *, maker: str = "nvidia", runtime: object = VLLM, **work: int) -> Question:
    devices = tuple(device(name, maker) for name in NAMES)
    pairs = tuple(PairSpec(ends, (RailSpec("x", 1e-5, 1e10),)) for ends in combinations(NAMES, 2))
    return Question(model, ClusterSpec(devices, pairs), Workload(**work), runtime=runtime)  # type: ignore[arg-type]


def alone(question: Question) -> Prediction:
    return predict(question, Plan((Stage(("a",), 0, question.model.layers),)))


def split(question: Question) -> Prediction:
    return predict(question, Plan((Stage(NAMES, 0, question.model.layers, (Share.even(2),) * 2),)))


def seconds(prediction: Prediction, kind: str) -> float:
    return sum(term.seconds for term in prediction.terms if term.kind == kind)


def test_kernels_are_those_of_the_devices_maker() -> None:
    """And of a maker that is not known the mean of the others; of a measured device none."""
    quick, slow = (alone(ask(DENSE, maker=maker)) for maker in ("nvidia", "amd"))
    assert seconds(slow, "weights") / seconds(quick, "weights") == pytest.approx(
        VLLM.kernels["nvidia"].reading / VLLM.kernels["amd"].reading
    )
    other = seconds(alone(ask(DENSE, maker="")), "weights")
    assert seconds(quick, "weights") < other < seconds(slow, "weights")
    question = ask(DENSE)
    measured = ClusterSpec((device("a", measured=True),))
    assert seconds(alone(question.on(measured)), "weights") == pytest.approx(
        seconds(quick, "weights") * VLLM.kernels["nvidia"].reading
    )
    mean = with_others({"x": Kernels(0.5, 1, 1e-6, 1e-6, 0.2), "y": Kernels(2, 1, 4e-6, 1e-6, 0.8, 16)})[""]
    assert astuple(mean) == pytest.approx((1, 1, 2e-6, 1e-6, 0.4, 4))


def test_experts_that_are_slow_to_unpack_take_as_long_as_larger_ones() -> None:
    packed, plain = (read_model("qwen3-30b-a3b", weights=each) for each in ("gptq-int4", None))
    ratios = {
        maker: seconds(alone(ask(plain, maker=maker)), "weights") / seconds(alone(ask(packed, maker=maker)), "weights")
        for maker in ("amd", "nvidia")
    }
    assert ratios["amd"] < 1.5 < 2.5 < ratios["nvidia"]


def test_other_engines_exchange_two_sums_of_a_layer_and_cut_its_states() -> None:
    """Transformers' plan for Gated DeltaNet gathers projections, and keeps all of the state on every rank."""
    ours, theirs = (split(ask(DELTA, runtime=runtime)) for runtime in (OURS, VLLM))
    fabric = seconds(theirs, "collective") - 2 * DELTA.layers * VLLM.collective_seconds
    assert 0 < fabric < seconds(ours, "collective")
    whole = alone(ask(DELTA, depth=1, prompt=1))
    assert seconds(split(ask(DELTA, depth=1, prompt=1)), "cache") == pytest.approx(
        seconds(whole, "cache") / 2, rel=0.05
    )


def test_small_experts_cost_beside_their_bytes() -> None:
    question = ask(read_model("qwen3-30b-a3b"))
    free = {"nvidia": replace(VLLM.kernels["nvidia"], expert_seconds=0.0)}
    more = seconds(alone(question), "launch") - seconds(
        alone(replace(question, runtime=replace(VLLM, kernels=free))), "launch"
    )
    assert more == pytest.approx(48 * 8 * VLLM.kernels["nvidia"].expert_seconds)


def test_a_step_has_a_cost_of_its_own_and_so_has_each_sequence() -> None:
    one, many = alone(ask(DENSE)), alone(ask(DENSE, concurrency=256))
    words = DENSE.vocab_size / 100_000
    assert seconds(one, "step") == pytest.approx(VLLM.step_seconds + VLLM.sequence_seconds * words)
    own = next(term.seconds for term in many.step_terms if term.kind == "step")
    assert own == pytest.approx(VLLM.step_seconds + 256 * VLLM.sequence_seconds * words)
    assert sum(term.seconds for term in many.step_terms) == pytest.approx(many.step_seconds)
    assert seconds(alone(ask(DENSE, runtime=OURS)), "step") == 0


def test_latents_are_wider_than_the_keys_that_they_stand_for() -> None:
    attention = read_model("deepseek-v3").decoder[0].attention
    assert attention is not None
    assert attention.absorbed_flops(999) == 2 * 128 * (576 + 512 - 192 - 128) * 1000
    dense = DENSE.decoder[0].attention
    assert dense is not None
    assert dense.absorbed_flops(999) == 0


def test_an_interval_is_as_wide_as_what_is_known_is_little() -> None:
    one = alone(ask(DENSE)).interval
    assert (one.token, one.step, one.prompt) == (SPREADS["one"], SPREADS["one"], SPREADS["prompt"])
    assert alone(ask(DENSE, concurrency=4)).interval.step == SPREADS["streams"]
    assert split(ask(DENSE)).interval.token == SPREADS["split"]
    assert alone(ask(DENSE, maker="intel")).interval.token > SPREADS["one"]
    assert alone(ask(DENSE, maker="apple", runtime=MLX)).interval.token == SPREADS["one"]
    assert alone(ask(DENSE, runtime=OURS)).interval.token == NEVER_MEASURED
    here = ClusterSpec((device("a", "", measured=True),))
    ours = alone(ask(DENSE, runtime=OURS, concurrency=4).on(here)).interval
    assert (ours.token, ours.step, ours.prompt) == (MEASURED, NOT_COMPARED, NOT_COMPARED)
    unheard = replace(DENSE, known_family=False)
    found = alone(ask(unheard))
    assert found.interval.token == pytest.approx(SPREADS["one"] + UNKNOWN_FAMILY)
    between = found.tokens_between
    assert between.low < found.tokens_per_s < between.high
    assert found.ttft_between.high / found.ttft_seconds == pytest.approx(found.ttft_seconds / found.ttft_between.low)


def test_machines_of_profiles_have_makers() -> None:
    makers = {name: cluster_from_profile(name).devices[0].maker for name in ("mac-four", "spark-pair", "two-strix")}
    assert makers == {"mac-four": "apple", "spark-pair": "nvidia", "two-strix": "amd"}
    assert cluster_from_profile("three-pc-switch").devices[0].maker == ""


def test_families_of_2026_are_known() -> None:
    assert {"glm_moe_dsa", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "deepseek_v4"} <= set(FAMILIES)


def test_prompts_and_tokens_on_machines_of_their_own() -> None:
    """As exo had it: a DGX Spark computes, a Mac Studio with three times its bandwidth writes."""
    spark, mac = (cluster_from_profile(name).devices[0] for name in ("spark-pair", "mac-four"))
    pairs = (PairSpec((spark.name, mac.name), (RailSpec("ethernet-10g", 25e-6, 1.2e9),)),)
    question = Question(DENSE, ClusterSpec((spark, mac), pairs), Workload(prompt=8192), runtime=MLX)
    on_spark, on_mac = (Plan((Stage((each.name,), 0, DENSE.layers),)) for each in (spark, mac))
    apart = replace(on_mac, prompts=on_spark)
    both = predict(question, apart)
    prompts, tokens = predict(question, on_spark), predict(question, on_mac)
    assert both.token_seconds == tokens.token_seconds
    assert prompts.ttft_seconds < both.ttft_seconds < tokens.ttft_seconds
    # A GB of keys and values takes 0.9 s, less than the prompt: only that of the last layer is waited for.
    handed = 8192 * 32 * 2 * 8 * 128 * 2
    assert both.ttft_seconds == pytest.approx(prompts.ttft_seconds + (25e-6 + handed / 1.2e9) / 32)
    assert sum(term.seconds for term in both.prompt_terms) == pytest.approx(both.ttft_seconds)
    assert [use.device for use in both.memory] == [spark.name, mac.name]
    # Over a slow cable that is what takes the time.
    slow = ClusterSpec((spark, mac), (PairSpec((spark.name, mac.name), (RailSpec("wifi", 2e-3, 1e7),)),))
    assert predict(question.on(slow), apart).ttft_seconds == pytest.approx(handed / 1e7, rel=0.05)
    with pytest.raises(PlanError, match="for prompts or for tokens, not for both"):
        replace(on_mac, prompts=on_mac)

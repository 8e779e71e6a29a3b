"""Whatever runs it, and with whatever beside it: greedy answers in float32 are those of one rank that does without."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mtp_models import make_mtp
from prefix_ranks import Requests, answers, requests, turns_of
from test_drafted_answers import alike
from tiny_models import make
from uneven_plans import alone, plan_of, shares_of

from ferrule.engine.messages import Cancel
from ferrule.engine.options import AS_NEEDED, RankOptions
from ferrule.engine.rank.driver.guesses import Guesses
from ferrule.engine.rank.step import runner as step_runner
from ferrule.engine.rank.step.load import held_bytes
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.source import describe, read_config
from ferrule.model import ModelSpec
from ferrule.plan import Plan, make_plan

FAMILIES = ("llama", "qwen3", "qwen3_moe", "gpt_oss", "gemma3_text", "deepseek_v3", "glm4_moe")
BY_ITSELF = "glm4_moe"
"""Its own layer guesses for it."""
BY_MODULES = ("gemma3_text",)
LAYOUTS = ("even", "uneven", "stages", "both", "widths", "experts", "experts alone", "sent", "sent alone", "pages")


class Beside(NamedTuple):
    """``guessed``: tokens at once; ``drafted``: by a model that says nearly the same, or a layer of its own. ``room``:
    tokens of the cache; where it is little, sequences are preempted. ``piece``: of a prompt at once. ``streamed``:
    weights are read from disk. ``modules``: of transformers."""

    guessed: int = 0
    prefixes: bool = True
    room: int = 768
    piece: int = 16
    streamed: bool = False
    modules: bool = False
    cancelled: bool = False
    drafted: bool = False

    @property
    def options(self) -> dict[str, Any]:
        given = {"speculate": self.guessed, "prefix_cache": self.prefixes, "cache_tokens": self.room}
        return given | {"batch_tokens": self.piece, "stream_weights": AS_NEEDED if self.streamed else None}


BESIDE = st.builds(
    Beside,
    st.sampled_from([0, 4]),
    st.booleans(),
    st.sampled_from([256, 768]),
    st.sampled_from([16, 64]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def laid_out(layout: str, spec: ModelSpec) -> Plan:
    """Experts stay cut where a model has none."""
    experts = spec.experts > 0
    match layout:
        case "even":
            return make_plan(spec, tensor=2)
        case "uneven":
            return plan_of(spec, shares_of(spec, (3.0, 1.0)))
        case "stages":
            return make_plan(spec, pipeline=2)
        case "both":
            return make_plan(spec, tensor=2, pipeline=2)
        case "widths":
            return plan_of(spec, shares_of(spec, (2.0, 1.0)), alone(1.0))
        case "pages":
            return make_plan(spec, context=2)
        case "experts":
            return plan_of(spec, shares_of(spec, (1.0, 1.0), (3.0, 1.0)), experts=experts)
        case "sent":  # to their experts
            cut = shares_of(spec, (1.0, 1.0, 1.0), (3.0, 1.0, 1.0))
            return plan_of(spec, cut, experts=experts, exchange=experts)
        case _:
            shares = alone(2.0, 1.0) if experts else shares_of(spec, (2.0, 1.0))
            return plan_of(spec, shares, experts=experts, exchange=experts and layout == "sent alone")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ranks read weights from disk at all, each does so that has step programs: a part of them."""
    streamed_weights = step_runner.streamed_weights

    def of_part(options: RankOptions, *others: Any) -> Any:
        if options.stream_weights is not None:
            options = replace(options, stream_weights=int(0.93 * held_bytes(*others[-2:])), identity="model")
        return streamed_weights(options, *others)

    monkeypatch.setattr(step_runner, "streamed_weights", of_part)


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize(
    "examples", [pytest.param(10, marks=pytest.mark.slow), pytest.param(150, marks=pytest.mark.soak)]
)
def test_any_schedule_on_any_split_gives_the_same(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guesses, "worth", lambda self, price, most: most)  # however long steps take

    @settings(max_examples=examples, deadline=None)
    @given(st.sampled_from(FAMILIES), st.sampled_from(LAYOUTS), requests(1, 3), BESIDE)
    @example("qwen3_moe", "experts alone", [[(132, 0, 40), (132, 1, 30)], [(132, 0, 40)]], Beside(4, streamed=True))
    @example("deepseek_v3", "sent", [[(132, 0, 40), (132, 1, 30)], [(132, 0, 40)]], Beside(4))
    @example("llama", "both", [[(70, 0, 40), (64, 1, 30)], [(132, 0, 20)]], Beside(4, room=256, drafted=True))
    @example("glm4_moe", "sent", [[(132, 0, 40), (132, 1, 30)], [(132, 0, 40)]], Beside(4, room=256, drafted=True))
    @example("gpt_oss", "pages", [[(132, 0, 40), (64, 1, 30)], [(132, 0, 20)]], Beside(4, room=256, streamed=True))
    @example("gpt_oss", "widths", [[(70, 0, 40), (64, 1, 30)], [(132, 0, 20)]], Beside(4, cancelled=True))
    def check(family: str, layout: str, orders: Requests, beside: Beside) -> None:
        if layout == "pages":  # which only step programs do
            family, beside = "llama" if family in BY_MODULES else family, beside._replace(modules=False)
        runner: Any = TorchRunner if beside.modules or family in BY_MODULES else StepRunner
        with tempfile.TemporaryDirectory() as folder:
            monkeypatch.setenv("FERRULE_MODEL_CACHE", f"{folder}/cache")
            made = partial(make_mtp, echoes=True) if family == BY_ITSELF else make
            directory = made(family, Path(folder) / "model")
            plan = laid_out(layout, describe(directory, read_config(directory)))
            asked = turns_of(orders, cancelled=beside.cancelled)
            mtp = beside.drafted and family == BY_ITSELF and layout != "pages"
            draft = alike(directory, Path(folder) / "draft") if beside.drafted and not mtp else None
            found = answers(directory, *asked, plan=plan, runner=runner, draft=draft, mtp=mtp, **beside.options)
            expected = answers(directory, *turns_of(orders, cancelled=False), runner=runner, prefix_cache=False)
        gone = {order.id for turn in asked for order in turn if isinstance(order, Cancel)}
        for number, whole in expected.tokens.items():
            one = found.tokens.get(number, [])
            assert one == (whole[: len(one)] if number in gone else whole)

    check()

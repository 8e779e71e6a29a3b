"""Two groups of ranks that planners place: they share a secret, and one is there without the other. No process runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from fake_ranks import SPEC, FakePlanner, FakeRanks, FakeStarter

from ferrule.engine import EngineOptions, SamplingParams
from ferrule.engine.apart import engine as apart_engine
from ferrule.engine.apart.engine import ApartEngine
from ferrule.engine.apart.start import _share_memory, start_apart_on_hosts
from ferrule.engine.host.placement import Deployment, Loss
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.options import RankOptions
from ferrule.errors import FerruleError, ModelUnavailable, PlanError
from ferrule.plan import make_plan

MODEL = PreparedModel(
    Path("/nowhere"), SPEC, make_plan(SPEC, pipeline=2), cast(Any, None), SamplingParams(), frozenset(), ""
)
AWAY = ModelUnavailable("none of the hosts quick answers")


class Starter(FakeStarter):
    """Its ranks do their imports, too."""

    async def start(self, options: RankOptions) -> FakeRanks:
        ranks = await super().start(options)
        for rank in range(len(ranks.far)):
            ranks.tell(rank, event="here")
        return ranks


class Placing(FakePlanner):
    """Raises these at its first starts."""

    def __init__(self, *errors: FerruleError) -> None:
        super().__init__(Starter(loads=9))
        self.first = list(errors)

    async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
        if self.first:
            raise self.first.pop(0)
        return await super().place(options, loss)

    def told(self, order: str) -> list[dict[str, Any]]:
        return [each for ranks in self.starter.started for each in ranks.asked if each["op"] == order]


def running(answers: Placing, prompts: Placing, body: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            options = EngineOptions("tiny", name="tiny", shares=(2.0, 1.0), tensor=2)
            engine = await start_apart_on_hosts(options, MODEL, lambda _: answers, lambda _: prompts)
            try:
                await body(engine)
            finally:
                await engine.close()

    asyncio.run(main())
    assert all(ranks.stopped for each in (answers, prompts) for ranks in each.starter.started)


async def until(what: Any) -> None:
    while not what():
        await asyncio.sleep(0.001)


def test_both_groups_have_one_secret_each_by_its_own_line() -> None:
    answers, prompts = Placing(), Placing()

    async def body(engine: ApartEngine) -> None:
        await until(lambda: answers.told("listen") and prompts.told("meet"))
        secrets = {each["secret"] for planner in (answers, prompts) for each in planner.told("meet")}
        (secret,) = secrets
        assert len(bytes.fromhex(secret)) == 32
        assert answers.told("listen") == [{"op": "listen", "beyond": True}]
        for planner, role in ((answers, "answers"), (prompts, "prompts")):
            assert planner.options.hands_over == role
            assert secret not in planner.options.to_json()
        assert (answers.options.plan, prompts.options.plan.world_size) == (MODEL.plan, 1)

    running(answers, prompts, body)


def test_answers_begin_without_hosts_for_prompts_which_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart_engine, "RETRY_SECONDS", 0.001)
    answers, prompts = Placing(), Placing(AWAY, AWAY)

    async def body(engine: ApartEngine) -> None:
        assert engine.health().state == "ready"
        use = engine.hand_over
        assert (use.state, use.error, use.joined) == ("waiting", str(AWAY), False)
        await until(lambda: answers.told("listen"))
        assert (engine.hand_over.state, engine.hand_over.error) == ("ready", None)

    running(answers, prompts, body)


@pytest.mark.parametrize(
    ("errors", "told"),
    [((AWAY, None), AWAY), ((None, PlanError("too large")), "too large"), ((AWAY, AWAY), AWAY)],
    ids=["answers away", "prompts never fit", "both away"],
)
def test_what_does_not_come_by_itself_is_told(errors: tuple[FerruleError | None, ...], told: object) -> None:
    answers, prompts = (Placing(*([] if error is None else [error])) for error in errors)
    with pytest.raises(type(told) if isinstance(told, FerruleError) else PlanError, match=str(told)):
        running(answers, prompts, None)
    assert all(ranks.stopped for each in (answers, prompts) for ranks in each.starter.started)


def test_groups_on_one_device_leave_each_other_room() -> None:
    def share(one: str, other: str) -> bool:
        return _share_memory(EngineOptions("x", device=one), EngineOptions("x", device=other))

    assert share("cpu", "cpu")
    assert share("cuda:0", "cuda")
    assert share("cuda:0,cuda:1", "cuda:1")
    assert not share("cpu", "cuda")
    assert not share("cuda:0", "cuda:1")


def test_a_plan_says_which_ranks_compute_prompts() -> None:
    apart = replace(MODEL.plan.on(["a", "b"]), prompts=make_plan(SPEC, tensor=2).on(["c", "d"]))
    assert apart.all_devices == ("c", "d", "a", "b")
    assert apart.alone == MODEL.plan.on(["a", "b"])

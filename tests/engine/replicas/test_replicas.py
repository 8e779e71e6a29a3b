"""Copies of a model whose ranks die: their requests go on at others. The ranks are sockets; no process is started."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fake_ranks import POISON, SPEC, FakePlanner, FakeStarter, next_token

from ferrule.engine import EngineOptions, SamplingParams
from ferrule.engine.host import supervisor
from ferrule.engine.host.placement import Deployment, Loss
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.options import RankOptions
from ferrule.engine.replicas import start as starting
from ferrule.engine.replicas.engine import Replicas
from ferrule.engine.replicas.start import ReplicaPlace, start_replicas, start_replicas_apart
from ferrule.errors import EngineError, ModelError, ModelUnavailable, RequestError
from ferrule.plan import make_plan

MODEL = PreparedModel(
    Path("/nowhere"), SPEC, make_plan(SPEC, pipeline=2), cast(Any, None), SamplingParams(), frozenset(), ""
)


def undisturbed(prompt: list[int], count: int, seed: int = 5) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, seed))
    return tokens[len(prompt) :]


class Held(FakePlanner):
    """A lost replica comes back when the test lets it."""

    def __init__(self, starter: FakeStarter) -> None:
        super().__init__(starter)
        self.let = asyncio.Event()

    async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
        if loss is not None:
            await self.let.wait()
        return await super().place(options, loss)


def place_of(planner: FakePlanner, **options: Any) -> ReplicaPlace:
    return ReplicaPlace(EngineOptions("tiny", name="tiny", **options), lambda _: planner)


def running(
    body: Callable[[Replicas, list[Held]], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, count: int = 2
) -> list[Held]:
    """Run ``body`` with replicas on two fake ranks each, within a deadline."""
    monkeypatch.setattr(supervisor, "pause", lambda attempt: 0.01 * attempt)
    planners: list[Held] = []

    async def main() -> None:
        planners.extend(Held(FakeStarter(loads=9)) for _ in range(count))
        engine = await start_replicas(MODEL, [place_of(each) for each in planners])
        try:
            async with asyncio.timeout(20):
                await body(engine, planners)
        finally:
            await engine.close()

    asyncio.run(main())
    assert all(ranks.stopped for planner in planners for ranks in planner.starter.started)
    return planners


async def ask(
    engine: Replicas,
    prompt: list[int],
    count: int = 120,
    at: dict[int, Callable[[], None]] | None = None,
    **params: Any,
) -> list[int]:
    made: list[int] = []
    async for token in engine.generate(prompt, SamplingParams(max_tokens=count, **{"seed": 5, **params})):
        made.append(token.id)
        if at and len(made) in at:
            at[len(made)]()
    return made


def asked(planner: FakePlanner) -> list[list[int]]:
    return [each["prompt"] for ranks in planner.starter.started for each in ranks.asked if each["op"] == "add"]


def test_answers_of_a_lost_replica_go_on_at_another_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Replicas, planners: list[Held]) -> None:
        def strike() -> None:
            planners[0].starter.started[-1].die(0, -9)

        answers = await asyncio.gather(
            ask(engine, [1, 2], 400, {50: strike}), ask(engine, [3], 400), ask(engine, [4], 400)
        )
        assert answers == [undisturbed([1, 2], 400), undisturbed([3], 400), undisturbed([4], 400)]
        health = engine.health()
        assert (health.state, health.error, health.recoveries) == ("ready", None, 0)
        assert [each.state for each in health.replicas] == ["recovering", "ready"]
        assert health.note is not None
        assert health.note.startswith("replica 1 of 2 is recovering: rank 0 was killed by SIGKILL")
        assert await ask(engine, [5]) == undisturbed([5], 120), "new ones go to the other, too"
        planners[0].let.set()
        while engine.health().replicas[0].state != "ready":
            await asyncio.sleep(0.001)
        health = engine.health()
        assert (health.note, health.recoveries) == (None, 1)
        assert [len(each.hosts) for each in health.replicas] == [1, 1]
        await asyncio.gather(ask(engine, [6]), ask(engine, [7]))

    first, second = running(body, monkeypatch)
    assert asked(first)[:2] == [[1, 2], [4]], "the least loaded one took each"
    assert [3] in asked(second)
    assert {(5,), (1, 2), (4,)} < {tuple(each) for each in asked(second)}
    (again,) = (each for each in second.starter.started[0].asked if each["op"] == "add" and each["prompt"] == [1, 2])
    assert len(again["made"]) >= 50
    assert len(asked(first)) == 3, "it has its share when it is back"


def test_while_no_replica_runs_requests_wait_for_the_first_that_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Replicas, planners: list[Held]) -> None:
        def strike() -> None:
            for planner in planners:
                planner.starter.started[-1].die(1, -9)
            planners[1].let.set()  # the first one stays away

        assert await ask(engine, [1], at={20: strike}) == undisturbed([1], 120)
        assert [each.state for each in engine.health().replicas] == ["recovering", "ready"]

    running(body, monkeypatch)


def test_a_request_that_kills_replica_after_replica_is_given_up_and_others_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(engine: Replicas, planners: list[Held]) -> None:
        for planner in planners:
            planner.let.set()
        good = asyncio.gather(ask(engine, [1], 400), ask(engine, [2], 400))
        with pytest.raises(RequestError, match="3 crashes in a row"):
            await ask(engine, [POISON])
        assert await good == [undisturbed([1], 400), undisturbed([2], 400)]

    planners = running(body, monkeypatch)
    assert sum(len(planner.starter.started) for planner in planners) == 5, "two, and one more after each crash"


def test_a_replica_that_fails_for_good_leaves_the_model_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Replicas, planners: list[Held]) -> None:
        planners[0].errors.append(ModelError("its files are gone"))
        planners[0].let.set()
        planners[0].starter.started[-1].die(0, -9)
        while engine.health().replicas[0].state != "failed":
            await asyncio.sleep(0.001)
        assert engine.health().state == "ready"
        assert engine.health().note == "replica 1 of 2 is failed: its files are gone"
        assert await ask(engine, [1]) == undisturbed([1], 120)
        planners[1].errors.append(ModelError("these, too"))
        planners[1].let.set()
        with pytest.raises(EngineError, match="the model has failed: these, too"):
            await ask(engine, [1], at={10: lambda: planners[1].starter.started[-1].die(0, -9)})
        assert (engine.health().state, engine.health().error) == ("failed", "its files are gone")

    running(body, monkeypatch)


def test_vectors_come_from_the_replica_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Replicas, planners: list[Held]) -> None:
        getting = asyncio.create_task(engine.embed([[1, 2]]))
        first, second = (planner.starter.started[0] for planner in planners)
        while not first.asked:
            await asyncio.sleep(0.001)
        first.die(0, -9)
        while not second.asked:
            await asyncio.sleep(0.001)
        vector = base64.b64encode(np.array([3.0, 4.0], np.float32).tobytes()).decode()
        second.tell(second.driver, event="embedded", id=second.asked[0]["id"], vector=vector)
        (found,) = await getting
        assert found.tolist() == pytest.approx([0.6, 0.8])

    running(body, monkeypatch)


def test_a_text_that_kills_replica_after_replica_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Replicas, planners: list[Held]) -> None:
        async def kill() -> None:
            struck = set()
            while True:
                for ranks in (each for planner in planners for each in planner.starter.started):
                    if ranks.asked and ranks not in struck:
                        struck.add(ranks)
                        ranks.die(0, -9)
                await asyncio.sleep(0.001)

        for planner in planners:
            planner.let.set()
        killing = asyncio.create_task(kill())
        with pytest.raises(RequestError, match="3 crashes in a row"):
            await engine.embed([[1, 2]])
        killing.cancel()

    running(body, monkeypatch)


def test_closing_an_answer_ends_it_at_its_replica_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Replicas, planners: list[Held]) -> None:
        stream = engine.generate([1], SamplingParams(max_tokens=400, ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        ranks = planners[0].starter.started[0]
        while ranks.open:
            await asyncio.sleep(0.001)
        assert engine.health().replicas[1].running == 0
        assert await ask(engine, [2]) == undisturbed([2], 120)

    first, second = running(body, monkeypatch)
    assert [each["op"] for each in first.starter.started[0].asked] == ["add", "cancel"]
    assert asked(second) == [[2]]


def test_replicas_apart_come_when_their_places_can_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "RETRY_SECONDS", 0.01)
    there = asyncio.Event()

    class Away(FakePlanner):
        async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
            if not there.is_set():
                raise ModelUnavailable("its host is away")
            return await super().place(options, loss)

    async def main() -> None:
        with pytest.raises(ModelUnavailable, match="its host is away"):
            await start_replicas_apart(MODEL, [place_of(Away(FakeStarter(loads=1)))] * 2)
        near = FakeStarter(loads=1)
        engine = await start_replicas_apart(MODEL, [place_of(Away(FakeStarter(loads=1))), place_of(FakePlanner(near))])
        health = engine.health()
        assert (health.state, health.note) == ("ready", "replica 1 of 2 is waiting: its host is away")
        assert await ask(engine, [1]) == undisturbed([1], 120)
        there.set()
        async with asyncio.timeout(10):
            while engine.health().note:
                await asyncio.sleep(0.001)
        assert [each.state for each in engine.health().replicas] == ["ready", "ready"]
        assert len(engine.ranks) == 4
        await engine.close()
        assert engine.health().state == "closed"
        broken = [place_of(FakePlanner(FakeStarter(loads=-1, code=1))), place_of(Away(FakeStarter(loads=1)))]
        there.clear()
        with pytest.raises(EngineError, match="ended with status 1"):
            await start_replicas_apart(MODEL, broken)

    asyncio.run(main())


def test_a_replica_that_fails_to_load_is_tried_again_and_the_model_is_served_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting, "RETRY_SECONDS", 0.01)
    failing = FakeStarter(loads=-1, code=1)

    async def main() -> None:
        engine = await start_replicas_apart(
            MODEL, [place_of(FakePlanner(FakeStarter(loads=1))), place_of(FakePlanner(failing))]
        )
        health = engine.health()
        assert (health.state, [each.state for each in health.replicas]) == ("ready", ["ready", "failed"])
        assert health.note is not None
        assert "replica 2 of 2 is failed: rank 0 ended with status 1" in health.note
        failing.loads = 9
        async with asyncio.timeout(10):
            while engine.health().note:
                await asyncio.sleep(0.001)
        await engine.close()

        loaded = FakeStarter(loads=9)

        class Wrong(FakePlanner):
            async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
                raise ValueError("a fault of ours")

        with pytest.raises(ValueError, match="a fault of ours"):
            await start_replicas_apart(MODEL, [place_of(FakePlanner(loaded)), place_of(Wrong(loaded))])
        assert all(ranks.stopped for ranks in loaded.started), "what was loaded is closed"

    asyncio.run(main())


def test_copies_of_one_machine_share_its_cores_and_say_who_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.engine.host.processes.usable_cores", lambda: 16)
    planners = [FakePlanner(FakeStarter(loads=1)) for _ in range(2)]

    async def main() -> None:
        places = [place_of(each, copies=2, copies_left=1 - number) for number, each in enumerate(planners)]
        engine = await start_replicas(MODEL, places)
        assert [each.starter.asked.threads for each in planners] == [4, 4], "16 cores, 2 copies of 2 ranks"
        assert [each.starter.asked.copies_left for each in planners] == [1, 0]
        assert [each._supervisor.options.copies_left for each in engine.loaded] == [0, 0], "for what starts again"
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("copies", [1, 2])
def test_copies_that_share_memory_are_loaded_one_after_the_other_others_at_once(copies: int) -> None:
    loading, most, let = 0, 0, asyncio.Event()

    class Slow(FakePlanner):
        async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
            nonlocal loading, most
            loading += 1
            most = max(most, loading)
            if most == 3 - copies:
                let.set()
            await let.wait()
            loading -= 1
            return await super().place(options, loss)

    async def main() -> None:
        starters = [FakeStarter(loads=1), FakeStarter(loads=1)]
        places = [place_of(Slow(each), copies=copies) for each in starters]
        engine = await start_replicas(MODEL, places)
        assert most == 3 - copies
        await engine.close()

        begun = FakeStarter(loads=1)
        broken = FakeStarter(loads=-1, code=1)
        places = [place_of(FakePlanner(each), copies=copies) for each in (begun, broken)]
        with pytest.raises(EngineError, match="ended with status 1"):
            await start_replicas(MODEL, places)
        assert all(ranks.stopped for each in (begun, broken) for ranks in each.started)

    asyncio.run(main())

"""Devices that come back after they stayed lost: when they are used again, and when they are not tried any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from fake_ranks import SPEC, rank_options
from test_device_choice import choice, here

from ferrule.engine.device_probe import probe_here
from ferrule.engine.host.device_returns import PAUSES, DeviceReturns
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.lost_devices import MOST_RETURNS, RETURN_SECONDS, LostDevices
from ferrule.engine.host.migration import MigrationMonitor
from ferrule.engine.host.placement import Deployment, Loss
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.messages import DeviceLost
from ferrule.engine.options import RankOptions
from ferrule.engine.types import SamplingParams
from ferrule.errors import EngineError
from ferrule.model import ModelSpec, read_model

STEADY = 30.0
CARD = ("", "cuda:0")


def loss(name: str = "cuda:0") -> Loss:
    gone = DeviceLost(name, True, ("cuda:1", "cpu"))
    return Loss(EngineError("it fell off the bus"), (0,), ("",), crashed=True, devices=(("", gone),))


class Scene:
    """A clock, and devices that answer or do not."""

    def __init__(self) -> None:
        self.now, self.probes, self.lost = 0.0, list[float](), LostDevices()
        self.there: set[str] = set()
        self.returns = DeviceReturns(self.lost, self.probe, STEADY, lambda: self.now)

    async def probe(self, host: str, device: str) -> str:
        self.probes.append(self.now)
        return "" if device in self.there else "it does not answer"

    def look(self, seconds: float, step: float = 1.0) -> frozenset[tuple[str, str]]:
        """Ask again and again for so long, or until one is back."""
        end = self.now + seconds
        while not (back := asyncio.run(self.returns.look())) and self.now < end:
            self.now += step
        return back


def deployment(device: str) -> Deployment:
    return Deployment(replace(rank_options(), device=device), cast(Any, "here"))


def test_it_is_probed_with_growing_pauses_and_used_when_it_has_been_back_for_a_while() -> None:
    scene = Scene()
    scene.lost.note(loss(), 0.0)
    assert scene.look(700) == frozenset()
    gaps = [after - before for before, after in zip(scene.probes, scene.probes[1:], strict=False)]
    assert (scene.probes[0], gaps[:6]) == (PAUSES[0], list(PAUSES[1:]))
    begun = scene.now
    scene.there.add("cuda:0")
    assert scene.look(2000) == {CARD}
    assert scene.now - begun <= PAUSES[-1] + STEADY
    scene.there.clear()  # it is asked for again until it is used
    scene.now += PAUSES[0]
    assert asyncio.run(scene.returns.look()) == frozenset()
    never = DeviceReturns(scene.lost, scene.probe, None, lambda: scene.now)
    count = len(scene.probes)
    assert (asyncio.run(never.look()), len(scene.probes)) == (frozenset(), count)


def test_one_that_flaps_is_tried_ever_later_and_then_no_more() -> None:
    scene = Scene()
    scene.there.add("cuda:0")
    waits = []
    for _ in range(MOST_RETURNS):
        scene.lost.note(loss(), scene.now)
        begun = scene.now
        assert scene.look(1000) == {CARD}
        waits.append(scene.now - begun)
        scene.returns.offer(deployment("cuda:0"), frozenset({CARD}))
        scene.returns.chosen(deployment("cuda:0"))
        assert scene.lost.all == frozenset()
        scene.returns.settled()
    assert waits == [PAUSES[0] + STEADY * 2**number for number in range(MOST_RETURNS)]
    scene.lost.note(loss(), scene.now)
    scene.probes.clear()
    assert (scene.look(RETURN_SECONDS / 2, 600.0), scene.probes) == (frozenset(), [])
    assert scene.lost.told() == f"cuda:0 stays lost (cuda:0 came back {MOST_RETURNS} times only to be lost again)"
    assert scene.look(RETURN_SECONDS, 600.0) == {CARD}, "the next day"


def test_one_on_which_the_model_does_not_start_stays_lost() -> None:
    scene = Scene()
    scene.there.add("cuda:0")
    scene.lost.note(loss(), 0.0)
    for _ in range(2):
        back = scene.look(1000)
        scene.returns.offer(deployment("cuda:0"), back)
        scene.returns.chosen(deployment("cuda:0"))
        scene.returns.chosen(deployment("cpu"))  # back to what ran before
        assert scene.lost.all == {CARD}
    assert scene.lost.returns(CARD, scene.now) == 2


def planner_of(scene: Scene, spec: ModelSpec, options: RankOptions, **given: Any) -> LocalPlanner:
    model = PreparedModel(Path("/nowhere"), spec, options.plan, cast(Any, None), SamplingParams(), frozenset(), "")
    planner = LocalPlanner(**given).about(model)
    scene.lost = planner._lost
    scene.returns = planner._returns = DeviceReturns(scene.lost, scene.probe, STEADY, lambda: scene.now)
    return planner


@pytest.mark.parametrize("copy_seconds", [1e-5, 1.0], ids=["faster", "no faster"])
def test_the_model_moves_back_where_that_is_worth_it(copy_seconds: float) -> None:
    spec = read_model("llama-3.1-8b")
    options = replace(rank_options(), device="cuda")
    machine = here(copy_seconds=copy_seconds)
    machine["cuda:0"] = machine["cuda"][:1]
    scene = Scene()

    async def body() -> None:
        planner = planner_of(scene, spec, options, choice=choice("cuda:0" if copy_seconds < 1 else "cuda", machine))
        first = await planner.place(options, None)
        assert first.options.device == "cuda:0"
        now = await planner.place(options, loss())
        assert now.options.device == ("cpu" if copy_seconds < 1 else "cuda:1")
        assert await planner.better(options, now) is None
        scene.there.add("cuda:0")
        scene.now = PAUSES[0]
        assert await planner.better(options, now) is None, "not steady yet"
        scene.now += STEADY
        better = await planner.better(options, now)
        if copy_seconds == 1:
            assert better is None, "another card is as good"
            return
        assert better is not None
        assert (better.options, better.note) == (first.options, "cuda:0 is back in use")
        assert await planner.better(options, now) == better, "as the monitor asks before it moves"
        planner.chosen(better)
        assert await planner.better(options, better) is None
        assert planner._lost.all == frozenset()

    asyncio.run(body())


def test_ranks_go_back_where_the_user_put_them() -> None:
    options = replace(rank_options(2), device="cuda:0,cpu")
    scene = Scene()

    async def body() -> None:
        planner = planner_of(scene, SPEC, options)
        first = await planner.place(options, None)
        now = await planner.place(options, loss())
        assert now.options.device == "cuda:1,cpu"
        assert await planner.better(options, now) is None
        scene.there.add("cuda:0")
        scene.now = PAUSES[0]
        await planner.better(options, now)
        scene.now += STEADY
        better = await planner.better(options, now)
        assert better is not None
        assert (better.options, better.starter) == (first.options, now.starter)
        monitor = MigrationMonitor(planner, options, lambda: True, lambda: scene.now)
        assert await monitor._better(now) == better
        monitor.failed(better)
        assert await monitor._better(now) is None, "not soon again"

    asyncio.run(body())


def test_a_probe_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.engine.device_probe.PROBE_SECONDS", 0.01)
    assert asyncio.run(probe_here("cpu")) == "it did not answer within 0.01 s"


@pytest.mark.slow
def test_a_probe_finds_a_device_that_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_EMULATED_LOST", str(tmp_path))
    (tmp_path / "1").touch()
    assert "is not back on the bus" in asyncio.run(probe_here("emulated:1"))
    (tmp_path / "1").unlink()
    assert asyncio.run(probe_here("emulated:1")) == ""

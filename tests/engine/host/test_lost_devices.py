"""Devices that stay lost, and those that ranks take instead."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from fake_ranks import SPEC, FakeRanks, rank_options

from ferrule.engine.host import local_ranks
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.lost_devices import MOST_LOSSES, LostDevices
from ferrule.engine.host.placement import Loss
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.host.ranks import RankFailure
from ferrule.engine.host.restart_policy import CRASH_SECONDS, RestartPolicy
from ferrule.engine.messages import DeviceLost
from ferrule.engine.types import SamplingParams
from ferrule.errors import ConfigError, EngineError, PlanError
from ferrule.model import Weights

OTHERS = ("cuda:1", "cuda:2", "xpu:0", "cpu")


def loss(name: str = "cuda:0", *others: str, host: str = "", starting: bool = True) -> Loss:
    device = DeviceLost(name, starting, others or OTHERS)
    return Loss(EngineError("it fell off the bus"), (0,), (host,), crashed=True, devices=((host, device),))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (("cuda:0", "cpu"), ("cuda:1", "cpu")),
        (("cuda:0", "cuda:1"), ("cuda:2", "cuda:1")),
        (("cuda", "cuda", "cuda"), ("cuda:1", "cuda:2", "cuda:1")),
        (("auto", "xpu:0"), ("cuda:1", "xpu:0")),
        (("cuda:2",), ("cuda:2",)),
    ],
)
def test_one_of_the_same_kind_is_taken_first(wanted: tuple[str, ...], found: tuple[str, ...]) -> None:
    lost = LostDevices()
    assert lost.instead(wanted, [""] * len(wanted)) == wanted
    lost.note(loss(), 0.0)
    assert lost.instead(wanted, [""] * len(wanted)) == found


def test_then_another_accelerator_and_at_last_the_processor_each_on_its_host() -> None:
    lost = LostDevices()
    for number in range(3):
        lost.note(loss(f"cuda:{number}", "xpu:0", "cpu", host="one"), 0.0)
    assert lost.instead(("cuda:0", "cuda:0"), ["one", "two"]) == ("xpu:0", "cuda:0")
    lost.note(loss("xpu", "cpu", host="one"), 0.0)
    assert lost.instead(("cuda:0", "auto"), ["one", "one"]) == ("cpu", "cpu")
    assert lost.told() == "cuda:0 and cuda:1 and cuda:2 and xpu of one stays lost"


def test_a_device_is_lost_for_good_while_a_model_loads_or_after_several_times_in_a_while() -> None:
    lost = LostDevices()
    for number in range(2 * MOST_LOSSES):
        lost.note(loss(starting=False), number * CRASH_SECONDS / (MOST_LOSSES - 1))
        assert lost.of("") == ()
    for number in range(MOST_LOSSES):
        assert lost.of("") == ()
        lost.note(loss(starting=False), 1e6 + number)
    assert lost.of("") == ("cuda:0",)


def test_what_a_rank_says_of_its_device_is_known_to_the_planner_and_curable() -> None:
    started = FakeRanks(rank_options(2), hosts=("one", "two"))
    failure = RankFailure()
    failure.report(1, "ConfigError", "device cuda: torch finds none here", None, DeviceLost("cuda", True, ("cpu",)))
    found = failure.loss(started)
    started.close()
    assert found.devices == (("two", DeviceLost("cuda", True, ("cpu",))),)
    assert RestartPolicy().hopeless(found, 0.0) is None
    assert RestartPolicy().hopeless(replace(found, devices=()), 0.0) == "device cuda: torch finds none here"


def test_the_plan_goes_on_with_what_is_left_or_says_how_much_memory_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = replace(SPEC, embedding=Weights(5 << 30, 5 << 30, pieces=None))
    options = replace(rank_options(2), device="emulated,cpu")
    model = PreparedModel(Path("/nowhere"), spec, options.plan, cast(Any, None), SamplingParams(), frozenset(), "")

    async def place(free: int) -> tuple[str, str]:
        monkeypatch.setattr(local_ranks, "memory_free", lambda: (free, 64 << 30))
        planner = LocalPlanner().about(model)
        first = await planner.place(options, None)
        assert (first.options.device, first.note) == ("emulated,cpu", "")
        again = await planner.place(options, loss("emulated:0", "cpu", starting=False))
        assert (again.options.device, again.note) == ("emulated,cpu", "")
        last = await planner.place(options, loss("emulated:0", "cpu"))
        return last.options.device, last.note

    assert asyncio.run(place(8 << 30)) == (
        "cpu,cpu",
        "emulated:0 stays lost, so the model runs with rank 0 on cpu, rank 1 on cpu",
    )
    with pytest.raises(
        PlanError,
        match=r"^emulated:0 stays lost, and tiny does not fit: cpu needs 5\.0 GiB .* 3\.0 free, 2\.0 GiB .* too little",
    ) as caught:
        asyncio.run(place(3 << 30))
    assert (caught.value.needed or 0) - (caught.value.available or 0) >= 2 << 30
    assert not isinstance(caught.value, ConfigError)

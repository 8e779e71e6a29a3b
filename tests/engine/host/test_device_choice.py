"""The planner's choice among the devices of this machine, before a model is loaded and after a device was lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ferrule.engine.device_names import EMULATED_MEMORY, MOST_EMULATED
from ferrule.engine.host import local_ranks
from ferrule.engine.host.device_choice import DeviceChoice, advice, named_devices
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.placement import Deployment, Loss
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.messages import DeviceLost
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.engine.types import SamplingParams
from ferrule.errors import EngineError, PlanError
from ferrule.model import read_model
from ferrule.plan import DeviceSpec, make_plan

GB = 10**9
MODEL = read_model("llama-3.1-8b")
"""16 GB of weights."""


def device(name: str, memory: int, bandwidth: float, copy_seconds: float | None = None) -> DeviceSpec:
    rates = {"bf16": bandwidth * 50, "fp32": bandwidth * 20}
    rate = None if copy_seconds is None else 20e9
    return DeviceSpec(
        name, memory, bandwidth, rates, host="here", device=name, eager_seconds=2e-6, copy_rate=rate,
        copy_seconds=copy_seconds,
    )  # fmt: skip


def here(cpu: int = 64, gpu: int = 24, copy_seconds: float = 1e-5) -> dict[str, tuple[DeviceSpec, ...]]:
    """A machine with two equal GPUs; gigabytes free of its processors and of each GPU."""
    cards = tuple(device(f"cuda:{number}", gpu * GB, 900e9, copy_seconds) for number in range(2))
    return {"cpu": (device("cpu", cpu * GB, 60e9),), "cuda": cards, "cuda:1": cards[1:], "auto": cards}


def names(text: str, machine: dict[str, tuple[DeviceSpec, ...]]) -> list[str]:
    return [each.name for each in named_devices(text, machine.__getitem__)]


def choice(text: str = "cuda", machine: dict[str, tuple[DeviceSpec, ...]] | None = None) -> DeviceChoice:
    measure = (machine or here()).__getitem__
    return DeviceChoice(named_devices(text, measure), measure)


def test_names_allow_devices() -> None:
    assert names("cuda", here()) == names("auto", here()) == ["cuda:0", "cuda:1"]
    assert names("cuda:1,cpu,cuda:1", here()) == ["cuda:1", "cpu"]
    assert names("emulated", here()) == [f"emulated:{number}" for number in range(MOST_EMULATED)]
    (one,) = named_devices("emulated:3", here().__getitem__)
    assert (one.name, one.device, one.memory, one.accelerated) == ("emulated:3", "emulated:3", EMULATED_MEMORY, True)


def test_the_processor_is_no_device_beside_one_that_has_its_memory() -> None:
    gpu = replace(device("cuda:0", 64 * GB, 200e9), unified=True)
    machine = {"cpu": (device("cpu", 64 * GB, 60e9),), "cuda": (gpu,)}
    assert names("cuda,cpu", machine) == names("cpu,cuda", machine) == ["cuda:0"]
    assert names("cpu", machine) == ["cpu"]
    chooser = choice("cuda,cpu", machine)
    with pytest.raises(PlanError):
        chooser.plan(read_model("llama-3.3-70b"))
    assert chooser.plan(MODEL).devices == ("cuda:0",)
    assert chooser.plan(MODEL, ("cuda:0",)).devices == ("cpu",)


def test_it_splits_where_that_is_faster_or_one_is_not_enough() -> None:
    plan = choice().plan(MODEL)
    assert (plan.strategy, plan.world_size) == ("tensor", 2), "faster than one"
    plan = choice(machine=here(copy_seconds=1e-3)).plan(MODEL)
    assert (plan.strategy, plan.world_size) == ("single", 1)
    assert plan.devices == ("cuda:0",), "of two equal ones the first"
    assert "Use one device" in plan.reason
    plan = choice(machine=here(gpu=14)).plan(MODEL)
    assert sorted(plan.devices) == ["cuda:0", "cuda:1"]
    assert "One device is not enough" in plan.reason
    with pytest.raises(PlanError, match=r"does not fit: cuda:. needs") as caught:
        choice(machine=here(gpu=4)).plan(MODEL)
    assert (caught.value.needed or 0) > (caught.value.available or 0)


def test_without_what_is_lost_the_processor_is_taken_where_the_rest_is_not_enough() -> None:
    assert choice().plan(MODEL, ("cuda:0",)).devices == ("cuda:1",)
    assert choice().plan(MODEL, ("cuda",)).devices == ("cpu",)
    assert "cpu" in choice(machine=here(gpu=9)).plan(MODEL, ("cuda:0",)).devices
    with pytest.raises(PlanError, match="does not fit"):
        choice(machine=here(cpu=4)).plan(MODEL, ("cuda",))


def test_ranks_are_where_the_planner_says_and_plan_again_for_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.engine.host.processes.usable_cores", lambda: 8)
    monkeypatch.setattr(local_ranks, "memory_free", lambda: pytest.fail("the planner counts memory"))
    plan = make_plan(MODEL)
    options = RankOptions("/nowhere", "auto", plan, 8, 64, 1, 64, ())
    model = PreparedModel(Path("/nowhere"), MODEL, plan, cast(Any, None), SamplingParams(), frozenset(), "")
    planner = LocalPlanner(choice=choice(machine=here(gpu=14, cpu=3 * 14))).about(model)

    def place(*lost: str, starting: bool = True) -> Deployment:
        devices = tuple(("", DeviceLost(each, starting, ("cpu",))) for each in lost)
        loss = Loss(EngineError("it fell off the bus"), (0,), ("",), crashed=True, devices=devices)
        return asyncio.run(planner.place(options, loss if lost else None))

    first = place()
    assert sorted(first.options.device.split(",")) == ["cuda:0", "cuda:1"]
    assert (first.options.plan.world_size, first.options.threads, first.note) == (2, 4, "")
    again = place("cuda:1", starting=False)
    assert (again.options, again.note) == (first.options, "")
    gone = place("cuda:1")
    assert "cuda:1" not in gone.options.device
    assert gone.note.startswith("cuda:1 stays lost, so the model runs with rank 0 on ")
    last = place("cuda:0")
    assert (last.options.device, last.options.plan.strategy, last.options.threads) == ("cpu", "single", 8)
    planner = LocalPlanner(choice=choice(machine=here(cpu=4))).about(model)
    with pytest.raises(PlanError, match=r"^cuda stays lost, and .* does not fit: cpu needs .* too little"):
        place("cuda")


def test_a_split_that_the_user_asked_for_is_advised_against_and_kept() -> None:
    def told(text: str, gpu: int, tensor: int, copy_seconds: float = 1e-5) -> str:
        options = EngineOptions("x", tensor=tensor, device=text)
        devices = named_devices(text, here(gpu=gpu, copy_seconds=copy_seconds).__getitem__)
        return "; ".join(advice(MODEL, make_plan(MODEL, tensor=tensor), options, devices))

    assert "alone should be" in told("cuda", 24, 2, 1e-3)
    assert told("cuda", 24, 2) == ""
    assert told("cuda", 24, 1) == ""
    assert told("cuda", 14, 2) == ""
    assert "cuda:0 lacks" in told("cuda", 6, 2)
    assert told("cuda", 24, 4) == ""  # two ranks on each

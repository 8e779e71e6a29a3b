"""Devices of hosts: which of those that ``--device`` allows are described, and which the cluster's planner takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from ferrule.agent import device as agent_device
from ferrule.agent.device import DEVICE_SECONDS, PROCESSOR_SECONDS, allowed_devices
from ferrule.agent.placement import devices as host_devices
from ferrule.agent.placement.planner import ClusterPlanner
from ferrule.cluster.messages import DescribeDevices, ProbeDevice
from ferrule.cluster.records import Member
from ferrule.engine.host.lost_devices import used_of
from ferrule.engine.host.placement import Deployment, Loss
from ferrule.engine.messages import DeviceLost
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.errors import ClusterError, ConfigError, EngineError, ModelUnavailable, PlanError
from ferrule.fabric.join.addresses import Interface
from ferrule.fabric.join.hosts import RankHost
from ferrule.model import read_model
from ferrule.plan import DeviceSpec, make_plan
from ferrule.plan.cluster import HostReport

GB = 10**9
MODEL = read_model("llama-3.1-8b")
"""16 GB of weights."""


def device(name: str, memory: int = 24 * GB, bandwidth: float = 900e9) -> DeviceSpec:
    rates = {"bf16": bandwidth * 50, "fp32": bandwidth * 20}
    gpu = name != "cpu"
    return DeviceSpec(
        name, memory, bandwidth, rates, host="as it calls itself", device=name, eager_seconds=2e-6,
        copy_rate=20e9 if gpu else None, copy_seconds=1e-5 if gpu else None,
    )  # fmt: skip


PROCESSOR = device("cpu", 64 * GB, 60e9)
CARDS = [device("cuda:0"), device("cuda:1")]


def test_a_device_that_cannot_be_measured_is_told_and_the_processor_stands_in_for_none() -> None:
    asked: list[tuple[str, float]] = []
    now = [0.0]

    def measure(unit: str, seconds: float) -> Sequence[DeviceSpec]:
        asked.append((unit, seconds))
        if unit == "cpu":
            return [PROCESSOR]
        if unit == "cuda":
            return CARDS
        now[0] += 2 * seconds
        raise PlanError(f"the benchmark of this machine took longer than {seconds:g} s")

    def found(names: str) -> tuple[list[str], list[str]]:
        asked.clear()
        now[0] = 0.0
        devices, notes = allowed_devices(names, measure, lambda: now[0])
        return [each.name for each in devices], notes

    assert found("cuda,cpu,cuda") == (["cuda:0", "cuda:1", "cpu"], [])
    names, (note,) = found("xpu,cuda")
    assert (names, note.partition(":")[0], "took longer" in note) == (["cuda:0", "cuda:1"], "xpu is left out", True)
    names, (note,) = found("xpu")
    assert (names, note.endswith("s; it counts as its processor")) == (["cpu"], True)
    (_, first), (_, last) = asked
    assert first == (DEVICE_SECONDS - PROCESSOR_SECONDS) / 2, "two processes in turn"
    assert last == PROCESSOR_SECONDS / 2, "before the host's own deadline"
    assert found("auto")[1] == ["its accelerator is left out: the benchmark of this machine took longer than 45 s; "
                                "it counts as its processor"]  # fmt: skip
    with pytest.raises(ConfigError, match="not one of"):
        found("gpu")


class Hosts:
    """Hosts a and b; ``devices``: of each, by name."""

    def __init__(self, patch: pytest.MonkeyPatch, **devices: Sequence[DeviceSpec]) -> None:
        self.devices, self.asked = devices, list[tuple[str, str]]()
        self.notes: dict[str, tuple[str, ...]] = {}
        self.back: dict[str, str] = {}
        patch.setattr(host_devices, "ask_member", self.ask_member)
        patch.setattr(host_devices, "read_calibrations", dict)
        self.members = [
            Member(name * 32, name, 8421, (f"10.0.0.{number}",), "0.1.0", "3.11") for number, name in enumerate(devices)
        ]

    async def ask_member(
        self, home: object, member: Member, question: DescribeDevices | ProbeDevice, *, timeout: float
    ) -> str:
        if isinstance(question, ProbeDevice):
            self.asked.append((member.name, question.device))
            return self.back[member.name]
        self.asked.append((member.name, question.devices))
        there = [each for each in self.devices[member.name] if each.name.partition(":")[0] in question.devices]
        if not there:
            raise ClusterError("nothing is there")
        number = list(self.devices).index(member.name)
        face = Interface("eth0", f"10.0.0.{number}", 24, 1500, 10_000)
        host = RankHost("itself", f"id{number}", 1, (0, 1, 2, 3), "auto", interfaces=(face,), kernel=member.name)
        report = HostReport(there[0], host, self.notes.get(member.name, ()), tuple(there[1:]))
        return msgspec.json.encode(report).decode()

    def place(self, planner: ClusterPlanner, loss: Loss | None = None) -> Deployment:
        options = RankOptions("/models/x", "auto", make_plan(MODEL), 1, 2048, 8, 512, (), device="auto")
        if loss is not None:
            planner._lost.note(loss, 0.0)
        planner._spec = MODEL
        deployment = asyncio.run(planner._deployment(options, self.members, planner._lost, fresh=loss is None))
        planner.chosen(deployment)
        return deployment


def lost(name: str, host: str) -> Loss:
    gone = DeviceLost(name, True, ("cpu",))
    return Loss(EngineError("gone"), (0,), (host,), crashed=True, devices=((host, gone),))


def planner_of(names: str) -> ClusterPlanner:
    return ClusterPlanner(cast(Any, None), EngineOptions("x", device=names), split=False)


def test_the_planner_takes_devices_of_several_kinds_and_hosts_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch, a=[PROCESSOR], b=[*CARDS, PROCESSOR])
    planner = planner_of("cuda,cpu")
    deployment = hosts.place(planner)
    assert planner.placed is not None
    assert (planner.placed.hosts, deployment.options.device) == (("b", "b"), "cuda:0,cuda:1")
    assert planner.placed.plan.devices == ("cuda:0 of b", "cuda:1 of b")
    assert " of b alone" in planner.placed.plan.reason
    assert hosts.asked == [("a", "cuda,cpu"), ("b", "cuda,cpu")]
    assert deployment.note == ""

    hosts.place(planner, lost("cuda:1", "b"))
    assert (planner.placed.hosts, planner.placed.devices) == (("b",), ("cuda:0",))
    deployment = hosts.place(planner, lost("cuda:0", "b"))
    assert set(planner.placed.devices) == {"cpu"}
    assert deployment.options.device == "cpu"
    assert deployment.note.startswith("cuda:1 and cuda:0 of b stays lost, so the model runs with rank 0 on cpu of ")
    assert len(hosts.asked) == 2, "what is known will do when time counts"


def test_a_gpu_of_one_host_and_the_processor_of_another_share_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [replace(CARDS[0], memory=9 * GB)]
    hosts = Hosts(monkeypatch, a=[replace(PROCESSOR, memory=14 * GB)], b=[*small, replace(PROCESSOR, memory=GB // 8)])
    hosts.notes["a"] = ("cuda is left out: torch finds none; it counts as its processor",)
    planner = planner_of("auto,cuda,cpu")
    deployment = hosts.place(planner)
    assert planner.placed is not None
    assert dict(zip(planner.placed.hosts, planner.placed.devices, strict=True)) == {"a": "cpu", "b": "cuda:0"}
    assert sorted(deployment.options.device.split(",")) == ["cpu", "cuda:0"]
    assert "One device is not enough" in planner.placed.plan.reason
    assert deployment.note == "a: cuda is left out: torch finds none; it counts as its processor"
    with pytest.raises(ModelUnavailable, match=r"^cuda:0 of b stays lost; a and b cannot hold it: .* too little"):
        hosts.place(planner, lost("cuda:0", "b"))


def test_a_note_is_logged_once_and_hosts_beside_are_asked_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = Hosts(monkeypatch, a=[*CARDS, PROCESSOR], b=[PROCESSOR])
    hosts.notes = {"a": ("xpu is left out",), "b": ("cuda is left out",)}
    planner = planner_of("auto,cuda,cpu")
    planner._hosts.beside = [hosts.members.pop()]
    assert hosts.place(planner).note == "a: xpu is left out"
    hosts.place(planner, lost("cuda:1", "a"))
    assert [name for name, _ in hosts.asked] == ["a", "b"], "what is known will do when time counts"
    hosts.place(planner)
    assert [name for name, _ in hosts.asked] == ["a", "b"] * 2
    assert caplog.messages == ["a: xpu is left out"]


def test_the_processor_is_asked_for_when_all_that_is_allowed_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch, b=[CARDS[0], PROCESSOR])
    planner = planner_of("cuda")
    assert hosts.place(planner).options.device == "cuda:0"
    assert hosts.place(planner, lost("cuda:0", "b")).options.device == "cpu"
    assert hosts.asked == [("b", "cuda"), ("b", "cpu")]
    hosts.devices["b"] = CARDS[:1]
    planner = planner_of("cuda")
    hosts.place(planner)
    with pytest.raises(ModelUnavailable, match="no host could be asked"):
        hosts.place(planner, lost("cuda:0", "b"))


def test_the_model_moves_back_to_a_device_that_its_host_says_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch, a=[PROCESSOR], b=CARDS[:1])
    planner = planner_of("cuda,cpu")
    now = [0.0]
    planner._returns._clock = lambda: now[0]

    async def steady(seconds: float) -> list[Member]:
        return hosts.members

    monkeypatch.setattr(planner._hosts, "steady", steady)
    options = RankOptions("/models/x", "auto", make_plan(MODEL), 1, 2048, 8, 512, (), device="auto")

    def better(deployment: Deployment) -> Deployment | None:
        return asyncio.run(planner.better(options, deployment))

    first = hosts.place(planner)
    assert first.options.device == "cuda:0"
    other = hosts.place(planner, lost("cuda:0", "b"))
    assert (planner.placed and planner.placed.hosts, other.options.device) == (("a",), "cpu")
    assert better(other) is None
    hosts.back["b"] = "it is not on the bus"
    now[0] = 1000.0
    assert better(other) is None
    hosts.back["b"] = ""
    for _ in range(2):
        now[0] += 1000.0
        found = better(other)
    assert found is not None
    assert (found.options, found.starter, found.note) == (first.options, first.starter, "cuda:0 of b is back in use")
    assert hosts.asked[-3:] == [("b", "cuda:0")] * 3
    planner.chosen(found)
    assert planner.placed is not None
    assert planner.placed.hosts == ("b",)
    assert better(found) is None
    assert planner._lost.all == frozenset()


def test_a_device_that_is_back_but_not_used_is_not_told_of() -> None:
    back = {("b", "cuda:0"), ("b", "cuda:1"), ("a", "xpu")}
    assert used_of(back, ["b", "a"], ["cuda:1", "xpu:0"]) == {("b", "cuda:1"), ("a", "xpu")}
    assert used_of(back, ["a", "c"], ["cpu", "cuda:0"]) == frozenset()


def test_a_report_names_the_devices_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ferrule.plan.cluster.devices_here", lambda unit, *, rank, timeout: (PROCESSOR,) if unit == "cpu" else ()
    )
    found = agent_device.report("emulated:1,cpu,emulated:3")
    assert [each.name for each in found.devices] == ["emulated:1", "cpu", "emulated:3"]
    assert found.notes == ()

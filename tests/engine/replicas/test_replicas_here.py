"""Where replicas of one machine go: on devices of their own, or on processors whose memory has to do for all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ferrule.engine import EngineOptions
from ferrule.engine.host import processes
from ferrule.engine.replicas import here
from ferrule.engine.replicas.here import on_devices, on_named_devices, on_processors
from ferrule.engine.replicas.start import ReplicaPlace
from ferrule.errors import ConfigError, PlanError
from ferrule.model import read_model
from ferrule.plan import DeviceSpec, make_plan

GIB = 2**30
MODEL = read_model("llama-3.2-3b")
"""6 GiB of weights."""


def cards(*gib: int, speeds: Sequence[float] = (), copy_seconds: float = 1e-5) -> tuple[DeviceSpec, ...]:
    return tuple(
        DeviceSpec(
            f"cuda:{number}", size * GIB, speed * 1e9, {"bf16": 1e14}, host="here", device=f"cuda:{number}",
            copy_rate=20e9, copy_seconds=copy_seconds,
        )
        for number, (size, speed) in enumerate(zip(gib, speeds or (900,) * len(gib), strict=True))
    )  # fmt: skip


def devices_of(places: Sequence[ReplicaPlace]) -> list[str]:
    return [place.options.device for place in places]


def measure(unit: str) -> Sequence[DeviceSpec]:
    raise AssertionError(f"{unit} is known")


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cores", lambda: 16)


def test_each_replica_has_devices_of_its_own() -> None:
    found = on_named_devices(EngineOptions("m", tensor=2, device="cuda"), 2, [f"cuda:{at}" for at in range(5)])
    assert devices_of(found) == ["cuda:0,cuda:1", "cuda:2,cuda:3"]
    assert [place.options.threads for place in found] == [4, 4]
    assert devices_of(on_named_devices(EngineOptions("m"), None, ["cuda:1", "cuda:3"])) == ["cuda:1", "cuda:3"]
    with pytest.raises(ConfigError, match="3 replicas of 1 rank need 3 devices, and --device cuda names 2: cuda:0, cu"):
        on_named_devices(EngineOptions("m", device="cuda"), 3, ["cuda:0", "cuda:1"])


def test_the_planner_says_which_devices_and_how_many_copies() -> None:
    options = EngineOptions("m", device="cuda")
    assert devices_of(on_devices(options, 2, MODEL, cards(24, 24), measure)) == ["cuda:0", "cuda:1"]
    assert devices_of(on_devices(options, 2, MODEL, cards(6, 6, 6, 6), measure)) == ["cuda:0,cuda:1", "cuda:2,cuda:3"]
    assert len(on_devices(options, None, MODEL, cards(24, 24, 24, copy_seconds=1e-3), measure)) == 3
    assert devices_of(on_devices(options, None, MODEL, cards(24, 24), measure)) == ["cuda:0,cuda:1"], "as good"
    assert devices_of(on_devices(options, None, MODEL, cards(24), measure)) == ["cuda:0"]
    assert devices_of(on_devices(options, None, MODEL, cards(6, 6), measure)) == ["cuda:0,cuda:1"], "they hold one"
    with pytest.raises(PlanError, match=r"2 replicas of llama-3.2-3b with 4,096 tokens of context do not fit on dev"):
        on_devices(options, 2, MODEL, cards(6, 6), measure)


def test_the_faster_device_counts_more() -> None:
    slow, fast = on_devices(EngineOptions("m", device="cuda"), 2, MODEL, cards(24, 24, speeds=(300, 900)), measure)
    assert 1.5 < fast.speed() / slow.speed() < 3.1


def test_copies_on_processors_share_memory_and_are_refused_where_it_is_too_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make_plan(MODEL)
    monkeypatch.setattr(here, "memory_free", lambda: (20 * GIB, 32 * GIB))
    found = on_processors(EngineOptions("m"), 3, MODEL, plan)
    assert [(place.options.copies, place.options.copies_left) for place in found] == [(3, 2), (3, 1), (3, 0)]
    with pytest.raises(PlanError, match=r"4 replicas of .* need 24.\d GiB, and this machine has 20.0 free, 4.\d") as no:
        on_processors(EngineOptions("m"), 4, MODEL, plan)
    assert no.value.needed is not None
    assert no.value.available == 20 * GIB
    assert len(on_processors(EngineOptions("m", stream_weights=4 * GIB), 4, MODEL, plan)) == 4, "of 6 GiB each has 4"

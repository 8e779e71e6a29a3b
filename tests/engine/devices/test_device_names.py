"""Device of a rank, from the names that a user gives."""

from __future__ import annotations

import re

import pytest

from ferrule.engine.device_names import KINDS, device_of, parse_device, parse_devices
from ferrule.engine.devices import DEVICES, device_kind, find_device, name_here, open_device
from ferrule.engine.options import EngineOptions
from ferrule.errors import ConfigError


def test_there_is_a_device_for_each_name() -> None:
    assert tuple(DEVICES) == KINDS


def test_names() -> None:
    assert parse_device("cuda") == ("cuda", None)
    assert parse_device("xpu:12") == ("xpu", 12)
    assert parse_devices("cuda:0, cpu,auto") == ("cuda:0", "cpu", "auto")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0:1", "rocm", "cpu,,cuda"])
def test_what_names_no_device_is_refused_where_it_is_given(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--device .* is not one of auto, cpu, cuda, xpu, mps, emulated"):
        EngineOptions("demo", device=name)


def test_one_name_is_for_all_ranks_and_several_for_one_each() -> None:
    assert [device_of("cuda", rank, 3) for rank in range(3)] == ["cuda"] * 3
    assert [device_of("cuda:1,cpu,cuda:0", rank, 3) for rank in range(3)] == ["cuda:1", "cpu", "cuda:0"]
    with pytest.raises(ConfigError, match=re.escape("--device cpu,cuda names 2 devices, and there are 3 ranks")):
        device_of("cpu,cuda", 0, 3)


def test_ranks_that_want_the_same_take_devices_in_turn() -> None:
    count = DEVICES["emulated"].count()
    assert [find_device("emulated", place) for place in (0, 1, count)] == ["emulated:0", "emulated:1", "emulated:0"]
    assert find_device("emulated:3", 1) == "emulated:3"
    assert find_device("cpu", 5) == "cpu:0"
    assert device_kind("cpu:0").pinned
    assert not device_kind("emulated:1").pinned


def test_auto_takes_what_torch_finds() -> None:
    found = next((kind for kind in ("cuda", "xpu", "mps") if DEVICES[kind].count()), "cpu")
    assert name_here("auto") == found
    assert name_here("emulated:3") == "emulated:3"


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_an_accelerator_that_is_not_there_is_named_with_what_it_takes(kind: str) -> None:
    if DEVICES[kind].count():
        pytest.skip(f"this machine has {kind}")
    with pytest.raises(ConfigError, match=rf"device {kind}: torch .* finds none here; it takes an? \w+"):
        open_device(kind, 1)

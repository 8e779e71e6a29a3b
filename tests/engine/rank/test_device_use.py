"""A rank's device is tried before anything is loaded, and named where it is at fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plugged import plug_in

from ferrule.engine.device_names import MOST_EMULATED
from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.engine.messages import DeviceLost
from ferrule.engine.rank.device_use import DeviceUse
from ferrule.errors import ConfigError, FabricTimeout

OTHERS = (*(f"emulated:{number}" for number in range(MOST_EMULATED)), "cpu")


@pytest.fixture(autouse=True)
def fresh_machines() -> None:
    open_device("emulated", 1)
    for number in range(2):
        plug_in(Machine(number))


def using(name: str) -> DeviceUse:
    use = DeviceUse()
    use.name = name
    return use


def test_a_device_that_stays_lost_is_told_with_what_else_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERRULE_EMULATED_LOST", str(tmp_path))
    using("emulated:1").attempt(1)
    for number in (0, 3):
        (tmp_path / str(number)).touch()
    use = using("emulated:0")
    with pytest.raises(RuntimeError, match="emulated:0: is not back on the bus") as caught:
        use.attempt(1)
    left = tuple(each for each in OTHERS if each not in ("emulated:0", "emulated:3"))
    assert use.lost_by(caught.value) == DeviceLost("emulated:0", True, left)


def test_what_is_not_the_device_s_fault_is_told_apart() -> None:
    use = using("cuda:7")
    with pytest.raises(ConfigError) as absent:
        use.attempt(1)
    assert use.lost_by(absent.value) == DeviceLost("cuda:7", True, ("cpu",))
    use = using("emulated:0")
    use.attempt(1)
    use.starting = False
    others = [ConfigError("a flag"), ValueError("a bug"), FabricTimeout("slow"), torch.OutOfMemoryError("full")]
    assert [use.lost_by(each) for each in others] == [None] * 4
    failed = use.lost_by(torch.AcceleratorError("CUDA error: unspecified launch failure"))
    assert failed is not None
    assert (failed.name, failed.starting) == ("emulated:0", False)
    assert using("cpu:0").lost_by(torch.AcceleratorError("of no device here")) is None

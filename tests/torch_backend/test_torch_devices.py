"""Tensors of accelerators, here emulated ones, on the backend ferrule."""

from __future__ import annotations

import collective_checks
import framework_checks
import group_checks
import pytest
from torch_ranks import HAS_DEVICES, checks_of, run_checks

pytestmark = pytest.mark.skipif(not HAS_DEVICES, reason="torch before 2.10")
NOT_THERE = {
    "collective_checks.refusals": "the device has no sparse tensors",
    "group_checks.beside_gloo": "gloo reads the memory of tensors, and those of a device written in Python have none",
    "framework_checks.compiled": "torch does not trace tensors of a device written in Python",
}
EVERYWHERE = [check for check in checks_of(collective_checks, group_checks, framework_checks) if check not in NOT_THERE]


def all_right(checks: list[str], devices: list[str], *, unified: bool = False) -> None:
    env = {"FERRULE_EMULATED_UNIFIED": "1"} if unified else {}
    failures = run_checks(checks, len(devices), env, devices)
    assert not any(failures.values()), "\n".join(f"{check}: {text}" for check, text in failures.items() if text)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["emulated", "emulated"], ["emulated", "", "emulated"]], ids=str)
def test_what_works_in_host_memory_works_on_devices_also_of_some_ranks(devices: list[str]) -> None:
    """But what torch builds on collectives, such as DTensor, calls others for other kinds of device."""
    alike = len(set(devices)) == 1
    checks = [check for check in EVERYWHERE if alike or not check.startswith("framework")]
    all_right(checks, devices, unified=not alike)


@pytest.mark.slow
def test_memory_that_the_host_sees_is_used_in_place() -> None:
    all_right(["device_checks.in_place", "device_checks.streams_are_kept"], ["", ""], unified=True)


@pytest.mark.slow
def test_training() -> None:
    names = ("data_parallel_training", "sharded_training")
    all_right([f"device_training_checks.{name}" for name in names], ["", ""])

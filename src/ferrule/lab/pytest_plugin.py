"""Fixtures of pytest: emulated machines and cables.

In a ``conftest.py``::

    pytest_plugins = ["ferrule.lab.pytest_plugin"]

and in a test::

    from ferrule.lab import pair

    def test_it_survives_a_pulled_cable(ferrule_lab):
        lab = ferrule_lab(pair().shaped(rate=10e9, delay=10e-6))   # or ferrule_lab("two-strix")
        server = lab.popen(1, ["my-server"])
        lab.cables[0].cut()

The same hosts as virtual machines with real kernels, joined by emulated USB4 cables (docs/virtual-usb4.md)::

    def test_my_driver(ferrule_vms):
        lab = ferrule_vms("two-strix", Guest(script="", modules=["thunderbolt_net", Path("my_driver.ko")], cpus=1))
        lab.wait_for_cables(120)
        lab["strix-1"].check("ping -c 1 strix-2")
        lab.usb4.unplug("cable0")

A lab, and all that was started in it, is gone when the test ends. Where there can be no lab the test is skipped, with
the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ferrule.hardware import find_lab
from ferrule.lab import Lab, Topology, obstacle
from ferrule.lab.vm import TOOLS, Guest, JoinedGuests, VmLab
from ferrule.lab.vm import obstacle as vm_obstacle

MakeLab = Callable[..., Lab]
MakeVms = Callable[..., JoinedGuests]


@pytest.fixture
def ferrule_lab() -> Iterator[MakeLab]:
    """A function that brings up a lab until the test ends: of a `Topology`, of a profile's name, or of a TOML file.

    Further arguments are those of `Lab`. It may be called several times: labs never meet.
    """
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as labs:

        def make(wanted: Topology | str, **options: Any) -> Lab:
            if isinstance(wanted, str):
                profile = find_lab(wanted)
                return labs.enter_context(Lab(profile.topology, **({"names": profile.hosts} | options)))
            return labs.enter_context(Lab(wanted, **options))

        yield make


@pytest.fixture
def ferrule_vms() -> Iterator[MakeVms]:
    """A function that boots the hosts of a profile (its name, or a TOML file) until the test ends.

    ``template``: what the hosts are like; ``suite``: the Debian suite of their kernel; ``machines``: where they boot,
    instead.
    """
    reason = vm_obstacle()
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as labs:

        def make(
            wanted: str, template: Guest | None = None, *, suite: str | None = None, machines: VmLab | None = None
        ) -> JoinedGuests:
            machines = machines or VmLab(packages=TOOLS, suite=suite)
            machines.prepare()
            return labs.enter_context(JoinedGuests(find_lab(wanted), machines, template))

        yield make

"""Choice of a plan for one model on this machine, for `ferrule serve`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ferrule.cli.serving.devices import choice_of, devices_of, split_as_asked
from ferrule.cli.serving.this_machine import ThisMachine
from ferrule.engine.device_names import CPU

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.engine import EngineOptions
    from ferrule.engine.host.device_choice import DeviceChoice
    from ferrule.engine.host.prepare import PlanChoice


class Placing(NamedTuple):
    """``plan``: chooses one for a model; None: as the options split it. ``machine``: where processors compute.
    ``devices``: among which the planner chooses, also later."""

    plan: PlanChoice | None = None
    machine: ThisMachine | None = None
    devices: DeviceChoice | None = None


def placing(
    console: Console, options: EngineOptions, make_room: Callable[[], None], *, split: bool, demo: bool
) -> Placing:
    """For a model that the user has ``split``, or not. ``make_room``: called before this machine is measured.
    ``demo``: it is split to show something."""
    if options.device == CPU:
        machine = ThisMachine(console, options.threads)
        stream = options.stream_weights is not None
        return Placing(None if split else partial(machine.plan, before_measuring=make_room, stream=stream), machine)
    devices = devices_of(console, options, None if split else make_room)
    if devices and not split:
        return Placing(devices=choice_of(options, devices))
    if devices and not demo:
        return Placing(partial(split_as_asked, console, options, devices))
    return Placing()

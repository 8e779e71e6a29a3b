"""Devices of this machine for `ferrule serve --device`: measured if need be, which people are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ferrule.cli.serving.this_machine import MEASURING
from ferrule.errors import FerruleError, PlanError

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.engine import EngineOptions
    from ferrule.engine.host.device_choice import DeviceChoice, Measure
    from ferrule.model import ModelSpec
    from ferrule.plan import DeviceSpec, Plan


def measure_of(options: EngineOptions) -> Measure:
    """What measures a unit of this machine as ranks with ``options`` use it."""
    from ferrule.agent.device import RANK
    from ferrule.plan.cluster import devices_here

    return partial(devices_here, rank=RANK, threads=options.threads)


def devices_of(
    console: Console, options: EngineOptions, before_measuring: Callable[[], None] | None
) -> tuple[DeviceSpec, ...]:
    """The devices of this machine that ``--device`` allows; none where one of them is not known. That is measured, if
    ``before_measuring`` is given, after a call of it."""
    from ferrule.engine.host.device_choice import named_devices
    from ferrule.plan.cost import calibrated
    from ferrule.plan.device.measure import recall_device

    measure, told = measure_of(options), False

    def measured(unit: str) -> Sequence[DeviceSpec]:
        nonlocal told
        if not told and recall_device(unit=unit, threads=options.threads) is None:
            if before_measuring is None:
                raise PlanError(f"{unit} was not measured yet")
            told = True
            before_measuring()
            console.print(MEASURING, style="dim", highlight=False)
        return [calibrated(device) for device in measure(unit)]

    try:
        return named_devices(options.device, measured)
    except (FerruleError, OSError, RuntimeError) as error:  # the ranks say better what is wrong with a device
        if before_measuring is not None:
            console.print(f"Not planned: {error}", style="dim", highlight=False)
        return ()


def choice_of(options: EngineOptions, devices: Sequence[DeviceSpec]) -> DeviceChoice:
    """The planner's choice among ``devices``."""
    from ferrule.engine.host.device_choice import DeviceChoice

    stream = options.stream_weights is not None
    measure = measure_of(options)
    return DeviceChoice(devices, measure, context=options.max_context, threads=options.threads, stream=stream)


def split_as_asked(console: Console, options: EngineOptions, devices: Sequence[DeviceSpec], model: ModelSpec) -> Plan:
    """The plan that the user asked for; what the planner has to say against it is printed."""
    from ferrule.engine.host.device_choice import advice

    plan = options.plan(model)
    for sentence in advice(model, plan, options, devices):
        console.print(f"The split is as you asked, but {sentence}.", style="yellow", highlight=False)
    return plan

"""Choice of devices of this machine by the planner, among those that ``--device`` names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from ferrule.engine.device_names import (
    AUTO,
    CPU,
    EMULATED,
    EMULATED_MEMORY,
    MOST_EMULATED,
    device_of,
    parse_device,
    parse_devices,
)
from ferrule.engine.options import EngineOptions
from ferrule.errors import PlanError
from ferrule.model import ModelSpec
from ferrule.plan import DeviceSpec, Plan, Workload, plan_machine, split_advice, times_as_fast

CONTEXT = Workload().context
"""Tokens for which there should be room where the user does not say."""
Measure = Callable[[str], Sequence[DeviceSpec]]
"""Devices of this machine by a unit, as `ferrule.plan.cluster.devices_here` has them."""


def named_devices(names: str, measure: Measure) -> tuple[DeviceSpec, ...]:
    """Devices of this machine that ``names`` allows, called as ``--device`` calls them. Raises what ``measure`` raises,
    and `ConfigError` for what is no name."""
    found = [device for name in dict.fromkeys(parse_devices(names)) for device in _named(name, measure)]
    return apart({device.name: device for device in found}.values())


def apart(devices: Iterable[DeviceSpec]) -> tuple[DeviceSpec, ...]:
    """``devices`` of this machine without the processor, where an accelerator has the same memory: beside each other
    they would fill it twice, and share its bandwidth."""
    given = tuple(devices)
    if not any(each.unified for each in given):
        return given
    return tuple(each for each in given if each.device != CPU)


def _named(name: str, measure: Measure) -> Sequence[DeviceSpec]:
    if name.partition(":")[0] != EMULATED:
        return measure(name)
    (processor,) = measure(CPU)  # which computes for it
    _, number = parse_device(name)
    units = [f"{EMULATED}:{each}" for each in (range(MOST_EMULATED) if number is None else [number])]
    emulated = replace(
        processor,
        kind=EMULATED,
        memory=EMULATED_MEMORY,
        runtime_bytes=0,
        copy_rate=processor.memory_bandwidth,
        copy_seconds=processor.launch_seconds,
    )
    return [replace(emulated, name=unit, device=unit) for unit in units]


def advice(model: ModelSpec, plan: Plan, options: EngineOptions, devices: Sequence[DeviceSpec]) -> list[str]:
    """Sentences against a ``plan`` of ranks on the devices of ``options``, all of them among ``devices``; none where
    several ranks share one, of which the planner knows nothing."""
    left = {device.name: device for device in devices}
    used = []
    for rank in range(plan.world_size):
        name = device_of(options.device, rank, plan.world_size)
        fitting = (each for each in left if name in (AUTO, each, each.partition(":")[0]))
        unit = next(fitting, None)
        if unit is None:
            return []
        used.append(left.pop(unit))
    return split_advice(model, plan, [*used, *left.values()], context=options.max_context or CONTEXT)


class DeviceChoice:
    """``devices``: those that are allowed. ``threads``: as in `EngineOptions`. ``context``: tokens that it
    should hold. ``stream``: as of `plan_machine`."""

    def __init__(
        self,
        devices: Sequence[DeviceSpec],
        measure: Measure,
        *,
        context: int | None = None,
        threads: int | None = None,
        stream: bool = False,
    ) -> None:
        self.threads = threads
        self._devices, self._measure, self._context = tuple(devices), measure, context or CONTEXT
        self._stream = stream

    def plan(self, model: ModelSpec, lost: Collection[str] = ()) -> Plan:
        """The best plan, whose devices are names for ``--device``, without what is ``lost``: of what is allowed, and
        where that is not enough any more with the processor. Raises `PlanError` where nothing fits."""
        left = [each for each in self._devices if each.name not in lost and parse_device(each.name)[0] not in lost]
        if lost and not any(each.name == CPU for each in left):
            more = apart([*left, *self._measure(CPU)])
            try:
                return plan_machine(model, *(left or more), context=self._context)
            except PlanError:
                left = [*more]
        return plan_machine(model, *left, context=self._context, stream=self._stream)

    def times_as_fast(self, model: ModelSpec, plan: Plan, than: Plan) -> float:
        """How many times as fast as another ``plan`` should be, of what `plan` gave."""
        devices = self._devices
        if not any(each.name == CPU for each in devices):
            devices = (*devices, *self._measure(CPU))
        return times_as_fast(model, plan, than, devices, context=self._context)

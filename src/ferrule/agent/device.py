"""Descriptions of this host's devices for the planner, measured in a subprocess: ``python -m ferrule.agent.device``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ferrule.engine.device_names import AUTO, CPU, parse_devices
from ferrule.errors import ClusterError, FerruleError
from ferrule.process.answer import answer_of

if TYPE_CHECKING:
    from ferrule.plan import DeviceSpec
    from ferrule.plan.cluster import HostReport

DEVICE_SECONDS = 150.0
PROCESSOR_SECONDS = 60.0
"""Of those, left to measure the processor when a device did not answer."""
RANK = "ferrule.engine.rank.worker_process"
"""Module that times a rank of the built-in engine, for `ferrule.plan.device.measure`."""
MeasureWithin = Callable[[str, float], "Sequence[DeviceSpec]"]
"""Devices of this machine by a unit, each process of the measurement within so many seconds."""


async def described(devices: str) -> str:
    """The `HostReport` of ``devices``, as ``--device`` names them, in one line of JSON. Raises `ClusterError`."""
    try:
        answer = await answer_of("ferrule.agent.device", devices, seconds=DEVICE_SECONDS)
    except TimeoutError:
        raise ClusterError(f"it did not describe its devices within {DEVICE_SECONDS:g} s") from None
    if answer.returncode:
        raise ClusterError(f"it cannot describe its devices: {answer.complaint or 'it says nothing'}")
    return answer.out


def allowed_devices(
    names: str, measure: MeasureWithin, clock: Callable[[], float] = time.monotonic
) -> tuple[list[DeviceSpec], list[str]]:
    """Devices of this machine that ``names`` allow, and why others are left out: a device that cannot be measured
    within its part of `DEVICE_SECONDS`. Where none is left the processor stands in. Raises `PlanError` where that
    cannot be measured, `ConfigError` for what is no name."""
    from ferrule.engine.host.device_choice import apart, named_devices

    begun = clock()

    def within(unit: str) -> Sequence[DeviceSpec]:
        # The benchmark, and a process that tells what a rank needs.
        left = DEVICE_SECONDS - (clock() - begun) - (0.0 if unit == CPU else PROCESSOR_SECONDS)
        return measure(unit, max(1.0, left / 2))

    found: dict[str, DeviceSpec] = {}
    notes: list[str] = []
    for name in dict.fromkeys(parse_devices(names)):
        try:
            found |= {device.name: device for device in named_devices(name, within)}
        except (FerruleError, OSError, RuntimeError) as error:
            if name == CPU:
                raise
            notes.append(f"{'its accelerator' if name == AUTO else name} is left out: {error}")
    if not found:
        notes[-1] += "; it counts as its processor"
        found = {device.name: device for device in named_devices(CPU, within)}
    return list(apart(found.values())), notes


def report(names: str) -> HostReport:
    """This host with the devices that ``names`` allow; errors as of `allowed_devices`."""
    from ferrule.plan.cluster import HostReport, described_host, devices_here

    (device, *others), notes = allowed_devices(
        names, lambda unit, seconds: devices_here(unit, rank=RANK, timeout=seconds)
    )
    return HostReport(device, described_host(), tuple(notes), tuple(others))


def main(arguments: Sequence[str]) -> int:
    import msgspec  # with what follows seconds of imports, and memory that the agent must not have

    try:
        sys.stdout.write(f"{msgspec.json.encode(report(arguments[0])).decode()}\n")
    except FerruleError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

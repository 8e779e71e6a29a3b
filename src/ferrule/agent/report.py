"""Host report on request: memory, load, devices, links, heat and power. Nothing is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil

from ferrule.cluster.reports import DeviceReport, HostReport, LinkReport, RayStatus
from ferrule.fabric.join.hosts import this_host
from ferrule.links import Inventory, NetDevice, Probe, nvidia_smi
from ferrule.links.power import PowerMeter
from ferrule.process import Sensor

_NVIDIA_SECONDS = 3.0
_SENSOR_SECONDS = 2.0
"""Less than a client waits for a report."""
_AMD = "0x1002"
_HOT = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "amdgpu")


class Reporter:
    """Makes reports; one at a time. The mean watts are those since the report before."""

    def __init__(self) -> None:
        self._meter = PowerMeter()
        self._process = psutil.Process()
        inventory = partial(Probe.live().inventory, devices=False)  # sensors of their own tell of GPUs, which may hang
        self._links: Sensor[Inventory | None] = Sensor("the inventory of links", inventory, None)
        self._amd: Sensor[tuple[DeviceReport, ...]] = Sensor("the AMD driver", lambda: tuple(_amd_gpus()), ())
        self._nvidia: Sensor[tuple[DeviceReport, ...]] = Sensor("nvidia-smi", lambda: tuple(_nvidia_gpus()), ())
        self._heat = Sensor("the sensor of heat", _celsius, None)
        self._power = Sensor("the meter of power", self._watts, None)

    def report(self, ray: RayStatus) -> HostReport:
        """``ray``: how that is here.

        Takes some tenths of a second, or `_SENSOR_SECONDS` where a driver hangs: call it beside the event loop."""
        for sensor in (self._links, self._amd, self._nvidia, self._heat, self._power):
            sensor.begin()
        deadline = time.monotonic() + _SENSOR_SECONDS
        inventory = self._links.value(deadline)
        host = this_host("auto")
        cores = len(host.cpus)
        times = self._process.cpu_times()
        return HostReport(
            cores=cores,
            cpus=host.cpus,
            kernel=host.kernel,
            load=min(1.0, os.getloadavg()[0] / cores),
            devices=(_processor(inventory), *self._amd.value(deadline), *self._nvidia.value(deadline)),
            links=tuple(_link(each) for each in inventory.netdevs if _is_link(each)) if inventory is not None else (),
            celsius=self._heat.value(deadline),
            watts=self._power.value(deadline),
            agent_bytes=self._process.memory_info().rss,
            agent_cpu_seconds=times.user + times.system,
            ray=ray,
        )

    def _watts(self) -> float | None:
        meter, self._meter = self._meter, PowerMeter()
        return meter.watts()


def _processor(inventory: Inventory | None) -> DeviceReport:
    memory = psutil.virtual_memory()
    name = inventory.machine.cpu if inventory is not None else None
    return DeviceReport("cpu", name or "processor", memory.total, memory.available)


def _amd_gpus() -> Iterator[DeviceReport]:
    for device in sorted(Path("/sys/class/drm").glob("card[0-9]*/device")):
        try:
            if (device / "vendor").read_text().strip() != _AMD:
                continue
            total, used = (int((device / f"mem_info_vram_{word}").read_text()) for word in ("total", "used"))
        except (OSError, ValueError):
            continue
        yield DeviceReport("gpu", f"AMD GPU {device.resolve().name}", total, max(0, total - used))


def _nvidia_gpus() -> Iterator[DeviceReport]:
    rows = nvidia_smi.ask("name,memory.total,memory.free", _NVIDIA_SECONDS)
    try:
        yield from [DeviceReport("gpu", name, int(total) << 20, int(free) << 20) for name, total, free in rows]
    except ValueError:
        return


def _is_link(device: NetDevice) -> bool:
    return device.kind != "loopback" and (device.kind != "virtual" or bool(device.addresses))


def _link(device: NetDevice) -> LinkReport:
    addresses = tuple(each.address for each in device.addresses)
    up = bool(device.enabled) and device.carrier is not False
    return LinkReport(device.name, device.label or device.kind, up, device.speed_gb_s, addresses)


def _celsius() -> float | None:
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    heat = [each.current for name in _HOT for each in sensors.get(name, ()) if each.current]
    return max(heat, default=None)

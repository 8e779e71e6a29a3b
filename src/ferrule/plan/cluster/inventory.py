"""Devices of machines that were looked at but not measured: their inventories, and published figures of their GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ferrule.errors import PlanError
from ferrule.hardware import Machine, shipped
from ferrule.links import ComputeDevice, Inventory
from ferrule.links.types.pcie import pcie_gb_s
from ferrule.plan.cluster.local import pairs_of_host
from ferrule.plan.cluster.profile import device_of, lent
from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec, PairSpec

COPY_SECONDS = 10e-6
"""Of a small copy between a card and the host, with the wait for it: a choice, near what drivers publish."""
PCIE_PART = 0.8
"""Of a PCIe link's rate that copies of pinned memory get: packets have headers."""


def cluster_of_inventories(inventories: Sequence[Inventory]) -> ClusterSpec:
    """All GPUs that a model is worth computing on, each a device; those of one host exchange through its memory. Cables
    between hosts are not known. Raises `PlanError` where there is no GPU of which figures are known."""
    devices: list[DeviceSpec] = []
    pairs: list[PairSpec] = []
    notes: list[str] = []
    for inventory in inventories:
        found = _devices(inventory, notes)
        devices += found
        pairs += pairs_of_host(found)
    if not devices:
        raise PlanError(
            f"{' and '.join(one.host for one in inventories)}: no GPU of which figures are known; describe it in a "
            "file for --cluster, or plan on it, where it is measured"
        )
    if len(inventories) > 1:
        notes.append("cables between these machines are not known: --save FILE, and add [[link]] there for --cluster")
    return ClusterSpec(tuple(devices), tuple(pairs), notes=tuple(notes))


def _devices(inventory: Inventory, notes: list[str]) -> list[DeviceSpec]:
    profiles = shipped()
    there = inventory.capable_devices
    known: list[tuple[str, Machine, ComputeDevice]] = []
    numbers: Counter[str] = Counter()
    for device in there:
        # As torch counts: by PCI address, each kind on its own.
        name = f"{device.kind}:{numbers[device.kind]}"
        numbers[device.kind] += 1
        machine = profiles.by_gpu(device.vendor_id, device.device_id)
        if machine is None:
            notes.append(f"{inventory.host}: {device.name} is left out, as no figures of it are known")
        else:
            known.append((name, machine, device))
    found = []
    for number, (name, machine, device) in enumerate(known):
        called = inventory.host if len(known) == 1 else f"{inventory.host}-{number}"
        spec = replace(
            device_of(machine, called),
            memory=_memory(inventory, machine, device),
            host=inventory.host,
            device=name,
            copy_rate=_copy_rate(device),
            copy_seconds=None if device.unified else COPY_SECONDS,
            unified=device.unified,
        )
        if len(known) > 1:  # these are of a whole machine with one card
            spec = replace(spec, watts_idle=None, watts_busy=None, price=None)
        found.append(spec)
        notes.append(f"{called}: {device.name}, figures that makers and others published, not measured here")
    return found


def _memory(inventory: Inventory, machine: Machine, device: ComputeDevice) -> int:
    """Bytes that a model may fill: of unified memory what the driver lends, and no more than the host can spare."""
    host = inventory.machine.memory_bytes
    if not device.unified:
        return lent(device.memory_bytes or int(machine.memory.value), machine.name)
    whole = lent(host if host is not None else int(machine.memory.value), machine.name)
    if device.carved_bytes is not None and device.memory_bytes == device.carved_bytes:
        return lent(device.memory_bytes, machine.name)  # the firmware took it from the host before
    return whole if device.memory_bytes is None else min(whole, device.memory_bytes)


def _copy_rate(device: ComputeDevice) -> float | None:
    """Bytes per second; None where nothing is copied, or the link is not known."""
    link = None if device.unified else device.link
    if link is None:
        return None
    rate = pcie_gb_s(link.both_ends_gt_s, link.current_width)
    return None if rate is None else rate / 8 * 1e9 * PCIE_PART

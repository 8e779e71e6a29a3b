"""Check of the fastest connection to other machines: its limit, where that is little or not known."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.links.doctor import costs
from ferrule.links.doctor.cures import by_hand
from ferrule.links.doctor.netdev import CABLES, addresses_evidence, subnets, usable
from ferrule.links.findings import Finding
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.net import NetDevice

SLOW_MBPS = 5_000

_FASTER = by_hand(
    "A USB4 or Thunderbolt cable between two machines gives 20 to 40 Gb/s, and used 25 to 100 Gb/s adapters joined by "
    "one cable give RDMA."
)


def check(inventory: Inventory) -> Iterator[Finding]:
    """One finding at most; none where there is a USB4 cable or RDMA, of which other checks tell."""
    rdma = any(port.state in ("ACTIVE", "INIT", "ARMED") for device in inventory.rdma for port in device.ports)
    if inventory.peers or rdma or not inventory.netdevs:
        return
    usable_devices = [one for one in inventory.netdevs if one.kind != "loopback" and usable(one) and subnets(one)]
    speeds = {one.name: _speed(inventory, one) for one in usable_devices if _below(inventory, one)}
    wifi = next((one for one in usable_devices if one.kind == "wifi"), None)
    if speeds:
        yield from _cable(inventory, speeds)
    elif wifi is not None:
        yield _only_wifi(inventory, wifi)
    elif usable_devices:
        yield _emulated(inventory, usable_devices[0])
    else:
        what = "No interface has both a link and an address."
        evidence = addresses_evidence(inventory, *(one.name for one in inventory.netdevs if one.kind != "loopback"))
        yield Finding("no-link", "error", "network", what, evidence, "Other machines cannot be reached.", _FASTER)


def _below(inventory: Inventory, one: NetDevice) -> list[NetDevice]:
    """The interfaces with a cable that a bridge, bond or VLAN stands on; the interface itself if it has one."""
    names = (one.name, *one.members, one.parent)
    return [each for each in inventory.netdevs if each.name in names and each.kind in CABLES and usable(each)]


def _speed(inventory: Inventory, one: NetDevice) -> int:
    """In Mbit/s; 0 if it is not told."""
    return max(each.speed_mbps or 0 for each in _below(inventory, one))


def _cable(inventory: Inventory, speeds: dict[str, int]) -> Iterator[Finding]:
    name, mbps = max(speeds.items(), key=lambda item: item[1])
    device = inventory.netdev(name)
    if device is None or mbps >= SLOW_MBPS:
        return
    if not mbps:
        what = f"{name} does not tell its speed (driver {device.driver or 'unknown'})."
        if device.driver == "virtio_net":
            what += " This is a virtual machine: it depends on the host and on its neighbours."
        yield _unknown(inventory, name, what)
        return
    gb_s = mbps / 1000
    what = f"The fastest cable of this machine is {gb_s:g} Gb/s Ethernet ({name})."
    why = costs.limit(costs.TCP_ETHERNET, gb_s) + " Split by layers (--pp) instead: that sends once per token."
    evidence = inventory.evidence(f"{device.path}/speed", device.path)[:1] or addresses_evidence(inventory, name)
    yield Finding("only-slow-ethernet", "note", name, what, evidence, why, _FASTER)


def _only_wifi(inventory: Inventory, wifi: NetDevice) -> Finding:
    what = f"Wi-Fi ({wifi.name}) is the only way to other machines."
    why = costs.limit(costs.WIFI, costs.WIFI_GB_S) + " That is below what one machine reaches alone."
    cure = by_hand("Connect the machines by a cable: even 1 Gb/s Ethernet answers 50 times faster.")
    return Finding("only-wifi", "warning", wifi.name, what, addresses_evidence(inventory, wifi.name), why, cure)


def _emulated(inventory: Inventory, one: NetDevice) -> Finding:
    what = f"{one.name} exists only in the kernel, as in containers and labs; what is behind it is not told."
    return _unknown(inventory, one.name, what)


def _unknown(inventory: Inventory, name: str, what: str) -> Finding:
    why = "So its tokens/s cannot be told. For scale, 10 Gb/s Ethernet: " + costs.limit(costs.TCP_ETHERNET, 10.0)
    cure = by_hand("Measure it between two hosts: `ferrule links probe HOST`.")
    return Finding("speed-unknown", "note", name, what, addresses_evidence(inventory, name), why, cure)

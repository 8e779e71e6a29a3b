"""Network interfaces: ``/sys/class/net``, with addresses from `ferrule.links.linux.addresses`.

The formats are those of the kernel's ``Documentation/ABI/testing/sysfs-class-net`` and ``-net-statistics``.
"""

from __future__ import annotations

import dataclasses
import re

from ferrule.links.linux.addresses import Addressing
from ferrule.links.reader import PCI_ADDRESS, Reader
from ferrule.links.types.net import NetCounters, NetDevice, NetKind

CLASS = "/sys/class/net"

_LOOPBACK, _INFINIBAND = 772, 32
_IFF_UP = 1
_MAX_MBPS = 10_000_000
_SERVICE = re.compile(r"([0-9]+-[0-9a-f]+)\.[0-9]+")
_NOT_STATISTICS = ("carrier_changes",)


def read_netdevs(reader: Reader, addressing: Addressing) -> tuple[NetDevice, ...]:
    return tuple(_netdev(reader, name, addressing) for name in reader.names(CLASS) if name != "bonding_masters")


def _netdev(reader: Reader, name: str, addressing: Addressing) -> NetDevice:
    path = f"{CLASS}/{name}"
    parts = (reader.resolve(f"{path}/device") or "").split("/")
    driver = reader.last(f"{path}/device/driver")
    kind = _kind(reader, path, driver, attached=parts != [""])
    flags = reader.matched(f"{path}/flags", "0x[0-9a-f]{1,8}", lambda match: int(match[0], 16))
    speed = reader.number(f"{path}/speed", -1, 0xFFFFFFFF)
    duplex = reader.text(f"{path}/duplex")
    assigned = reader.number(f"{path}/addr_assign_type", 0, 255)
    return NetDevice(
        name=name,
        path=path,
        kind=kind,
        driver=driver,
        module=reader.last(f"{path}/device/driver/module"),
        pci_address=next((part for part in reversed(parts) if PCI_ADDRESS.fullmatch(part)), None),
        thunderbolt=next((match[1] for match in map(_SERVICE.fullmatch, parts) if match), None),
        # -1 and 2^32-1 are how drivers say that they do not know.
        speed_mbps=speed if speed is not None and 0 < speed <= _MAX_MBPS else None,
        duplex=duplex if duplex in ("full", "half") else None,
        mtu=reader.number(f"{path}/mtu", 0, 1 << 31),
        carrier=reader.flag(f"{path}/carrier"),
        operstate=reader.text(f"{path}/operstate"),
        enabled=None if flags is None else bool(flags & _IFF_UP),
        mac=_mac(reader, f"{path}/address"),
        mac_random=None if assigned is None else assigned == 1,
        addresses=addressing.of(name),
        wireless=kind == "wifi",
        master=reader.last(f"{path}/master"),
        members=_members(reader, path),
        parent=addressing.parents.get(name),
        counters=_counters(reader, path),
    )


def _kind(reader: Reader, path: str, driver: str | None, *, attached: bool) -> NetKind:
    """``attached``: to a device of its own; what is not exists only in the kernel."""
    hardware = reader.number(f"{path}/type", 0, 0xFFFF)
    if hardware == _LOOPBACK:
        return "loopback"
    if hardware == _INFINIBAND:
        return "infiniband"
    if reader.exists(f"{path}/wireless") or reader.exists(f"{path}/phy80211"):
        return "wifi"
    if reader.exists(f"{path}/bridge"):
        return "bridge"
    if reader.exists(f"{path}/bonding"):
        return "bond"
    if driver in ("thunderbolt-net", "thunderbolt_net"):
        return "thunderbolt"
    return "ethernet" if attached else "virtual"


def _mac(reader: Reader, path: str) -> str | None:
    """6 bytes for Ethernet, 20 for InfiniBand; zeros mean that there is none."""
    text = reader.matched(path, r"[0-9a-f]{2}(?::[0-9a-f]{2}){0,31}", lambda match: match[0])
    return text if text and text.strip("0:") else None


def _members(reader: Reader, path: str) -> tuple[str, ...]:
    slaves = reader.text(f"{path}/bonding/slaves")
    return tuple(slaves.split()) if slaves else tuple(reader.names(f"{path}/brif"))


def _counters(reader: Reader, path: str) -> NetCounters:
    names = [one.name for one in dataclasses.fields(NetCounters)]
    values = {name: reader.number(f"{path}/statistics/{name}") for name in names if name not in _NOT_STATISTICS}
    return NetCounters(**values, carrier_changes=reader.number(f"{path}/carrier_changes"))

"""PCIe links of network adapters and USB4 controllers: ``/sys/bus/pci/devices``.

The formats are those of the kernel's ``Documentation/ABI/testing/sysfs-bus-pci``.
"""

from __future__ import annotations

import dataclasses

from ferrule.links.pci_names import class_name, device_name, vendor_name
from ferrule.links.reader import PCI_ADDRESS, Reader
from ferrule.links.types.pcie import PcieLink

DEVICES = "/sys/bus/pci/devices"

_NETWORK, _INFINIBAND, _USB4 = 0x02, 0x0C06, 0x0C0340
_UNKNOWN_WIDTH = 255


def read_pcie(reader: Reader) -> tuple[PcieLink, ...]:
    """The links of all network and InfiniBand adapters, and of USB4 host controllers."""
    found = []
    for address in reader.names(DEVICES):
        if PCI_ADDRESS.fullmatch(address):
            code = reader.number(f"{DEVICES}/{address}/class", 0, 0xFFFFFF)
            if code is not None and (code >> 16 == _NETWORK or code >> 8 == _INFINIBAND or code == _USB4):
                found.append(_link(reader, address, _upstream(reader, address)))
    return tuple(found)


def card_link(reader: Reader, address: str) -> PcieLink:
    """The link of the card that this device is on: of a card with bridges of its own, as AMD's and Intel's GPUs have
    them, that of the first of these, since what lies behind them tells nothing of the slot."""
    own = _link(reader, address, _upstream(reader, address))
    inside = [bridge for bridge in own.upstream[:-1] if bridge.vendor_id == own.vendor_id]
    if not inside:
        return own
    return dataclasses.replace(inside[-1], upstream=own.upstream[own.upstream.index(inside[-1]) + 1 :])


def _upstream(reader: Reader, address: str) -> tuple[PcieLink, ...]:
    """The bridges above, from the directories that the device lies in."""
    above = (reader.resolve(f"{DEVICES}/{address}") or "").split("/")[:-1]
    bridges = [part for part in above if PCI_ADDRESS.fullmatch(part) and part != address]
    return tuple(_link(reader, bridge, ()) for bridge in reversed(bridges))


def _link(reader: Reader, address: str, upstream: tuple[PcieLink, ...]) -> PcieLink:
    path = f"{DEVICES}/{address}"
    code = reader.number(f"{path}/class", 0, 0xFFFFFF)
    vendor, device = (reader.number(f"{path}/{name}", 0, 0xFFFF) for name in ("vendor", "device"))
    return PcieLink(
        address=address,
        path=path,
        class_code=code,
        class_name=class_name(code),
        vendor_id=vendor,
        device_id=device,
        vendor=vendor_name(vendor),
        device=device_name(vendor, device),
        driver=reader.last(f"{path}/driver"),
        current_gt_s=_speed(reader, f"{path}/current_link_speed"),
        max_gt_s=_speed(reader, f"{path}/max_link_speed"),
        current_width=_width(reader, f"{path}/current_link_width"),
        max_width=_width(reader, f"{path}/max_link_width"),
        numa_node=_numa_node(reader, f"{path}/numa_node"),
        iommu_type=reader.text(f"{path}/iommu_group/type"),
        upstream=upstream,
    )


def _speed(reader: Reader, path: str) -> float | None:
    """Such as ``16.0 GT/s PCIe``; ``Unknown`` where there is no link."""
    text = reader.matched(path, r"([0-9]{1,3}(?:\.[0-9])?) GT/s(?: PCIe)?|Unknown(?: speed)?", lambda match: match[1])
    return float(text) if text else None


def _width(reader: Reader, path: str) -> int | None:
    """Lanes; 0 and 255 are how the kernel says that it does not know."""
    value = reader.number(path, 0, _UNKNOWN_WIDTH)
    return value if value not in (0, _UNKNOWN_WIDTH) else None


def _numa_node(reader: Reader, path: str) -> int | None:
    value = reader.number(path, -1, 1 << 16)
    return value if value is not None and value >= 0 else None

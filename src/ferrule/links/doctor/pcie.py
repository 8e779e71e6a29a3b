"""PCIe: has a card all the lanes and speed that it could use, and if not, whose fault is it?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ferrule.links.doctor.cures import by_hand
from ferrule.links.findings import Finding
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.pcie import PcieLink

GENERATIONS = {2.5: "1.0", 5.0: "2.0", 8.0: "3.0", 16.0: "4.0", 32.0: "5.0", 64.0: "6.0"}
"""Of PCI Express, by gigatransfers per second."""


def check(inventory: Inventory) -> Iterator[Finding]:
    for link in inventory.pcie:
        if _below(link):
            yield from _narrow(inventory, link)
        else:
            yield from _below_port(inventory, link)
    for device in inventory.devices:
        if device.link is not None and not device.unified:
            link = _awake(device.link)
            if _below(link):
                yield from _narrow(inventory, link, device.name, device.address)


def lanes(gt_s: float | None, width: int | None) -> str:
    """``3.0 ×4``."""
    generation = "?" if gt_s is None else GENERATIONS.get(gt_s, f"{gt_s:g} GT/s")
    return f"{generation} ×{width}"


def port_gb_s(inventory: Inventory, link: PcieLink) -> float | None:
    """The fastest port of the card that is up, in Gbit/s."""
    rdma = [
        port.rate_gb_s
        for device in inventory.rdma
        if device.pci_address == link.address
        for port in device.ports
        if port.state in ("ACTIVE", "INIT", "ARMED")
    ]
    nets = [one.speed_gb_s for one in inventory.netdevs if one.pci_address == link.address and one.carrier]
    return max((rate for rate in (*rdma, *nets) if rate), default=None)


def _below(link: PcieLink) -> bool:
    width = link.current_width is not None and link.max_width is not None and link.current_width < link.max_width
    return width or (link.current_gt_s is not None and link.max_gt_s is not None and link.current_gt_s < link.max_gt_s)


def _awake(link: PcieLink) -> PcieLink:
    """A GPU's link as it is under load, as far as its ends can: at rest the driver slows it down, on purpose."""
    best = link.both_ends_gt_s
    return link if best is None else dataclasses.replace(link, current_gt_s=best)


def _is_slots_limit(link: PcieLink) -> bool:
    """Whether the slot can do no more than what runs now, where the card falls short."""
    slot = link.slot
    if slot is None:
        return False
    narrow = (link.current_width or 0) < (link.max_width or 0)
    slow = (link.current_gt_s or 0) < (link.max_gt_s or 0)
    width = not narrow or (slot.max_width is not None and slot.max_width <= (link.current_width or 0))
    speed = not slow or (slot.max_gt_s is not None and slot.max_gt_s <= (link.current_gt_s or 0))
    return width and speed


def _name(link: PcieLink) -> str:
    return " ".join(filter(None, (link.vendor, link.device))) or link.address


def _evidence(inventory: Inventory, link: PcieLink) -> tuple[tuple[str, str], ...]:
    names = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
    found = inventory.evidence(*(f"{link.path}/{name}" for name in names))
    return found + (inventory.evidence(f"{link.slot.path}/max_link_width") if link.slot else ())


def _cost(inventory: Inventory, link: PcieLink) -> str:
    port, bus = port_gb_s(inventory, link), link.current_gb_s
    if bus is None:
        return ""
    if port is None:
        return f"The card cannot move more than {bus:.0f} Gb/s each way."
    if port <= bus:
        return f"Its port runs at {port:g} Gb/s and the link at {bus:.0f}, so nothing is lost."
    loss = f"The link carries {bus:.0f} of the port's {port:g} Gb/s: prompts and training go at {bus / port:.0%} of it."
    return f"{loss} Tokens/s hardly change, since small messages wait for latency, not for bandwidth."


def _narrow(inventory: Inventory, link: PcieLink, name: str = "", subject: str = "") -> Iterator[Finding]:
    """``name``, ``subject``: of a device on the card, where the card is not the device itself."""
    now, best = lanes(link.current_gt_s, link.current_width), lanes(link.max_gt_s, link.max_width)
    name, subject = name or _name(link), subject or link.address
    what = f"{name} runs at PCIe {now}; it can do {best}."
    evidence, why = _evidence(inventory, link), _cost(inventory, link)
    if _is_slots_limit(link):
        slot = lanes(link.slot.max_gt_s, link.slot.max_width) if link.slot else ""
        what += f" The slot has no more: {slot}. Nothing is wrong."
        cure = by_hand("Nothing to do here, unless another slot has more lanes. M.2 and OcuLink have 4.")
        yield Finding("pcie-slot-limit", "note", subject, what, evidence, why, cure)
        return
    what += " The slot could do more." if link.slot and link.slot.max_width else ""
    cure = by_hand(
        "Power off. Take the card out, clean its contacts, push it in until it clicks. Then: another riser or cable, "
        "the slot nearest the processor, and in the firmware the slot's lanes (bifurcation) and generation (Auto)."
    )
    yield Finding("pcie-downgraded", "warning", subject, what, evidence, why, cure)


def _below_port(inventory: Inventory, link: PcieLink) -> Iterator[Finding]:
    """All is as designed, and the port is still faster than the bus, as on DGX Spark."""
    port, bus = port_gb_s(inventory, link), link.current_gb_s
    if port is None or bus is None or port <= bus:
        return
    now = lanes(link.current_gt_s, link.current_width)
    what = f"The port runs at {port:g} Gb/s, its PCIe link ({now}) carries {bus:.0f}. The machine is built so."
    cure = by_hand(
        "Nothing to do. If the same socket has a second PCIe function (as on DGX Spark), use both interfaces at once: "
        "each has a link of its own."
    )
    yield Finding(
        "pcie-below-port", "note", link.address, what, _evidence(inventory, link), _cost(inventory, link), cure
    )

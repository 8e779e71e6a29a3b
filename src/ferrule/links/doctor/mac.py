"""RDMA over Thunderbolt on a Mac: which of them can, and which socket must not be used."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ferrule.links.doctor import costs
from ferrule.links.doctor.cures import by_hand
from ferrule.links.doctor.thunderbolt import called
from ferrule.links.findings import Cure, Finding
from ferrule.links.macos.machine import RDMA_CTL, SW_VERS
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.rdma import RdmaPort
from ferrule.links.types.thunderbolt import ThunderboltDomain, ThunderboltPeer

TB5_GB_S = 80.0
FORBIDDEN = "1"
"""Receptacle of a Mac Studio beside its Ethernet socket: no RDMA there."""
FIRST_MACOS = (26, 2)
_WITHOUT = (costs.TCP_THUNDERBOLT, TB5_GB_S)
_WITH = (costs.RDMA_THUNDERBOLT, TB5_GB_S)


def check(inventory: Inventory) -> Iterator[Finding]:
    if inventory.machine.system != "macos" or not inventory.thunderbolt:
        return
    speeds = [port.speed_gb_s for domain in inventory.thunderbolt for port in domain.ports if port.speed_gb_s]
    if not speeds:
        return
    if max(speeds) < TB5_GB_S:
        yield from _thunderbolt4(inventory, max(speeds))
    else:
        yield from _switched_off(inventory)
        for domain in inventory.thunderbolt:
            for peer in domain.peers:
                yield from _port(inventory, domain, peer)


def is_forbidden(inventory: Inventory, domain: ThunderboltDomain) -> bool:
    """Whether this is the socket of a Mac Studio that has no RDMA."""
    studio = "Mac Studio" in (inventory.machine.product or "")
    return studio and any(port.receptacle == FORBIDDEN for port in domain.ports)


def rdma_port(inventory: Inventory, netdevs: tuple[str, ...]) -> RdmaPort | None:
    """The RDMA port of an interface."""
    ports = (port for device in inventory.rdma for port in device.ports)
    return next((port for port in ports if set(port.netdevs) & set(netdevs)), None)


def _thunderbolt4(inventory: Inventory, best: float) -> Iterator[Finding]:
    if not inventory.rdma and inventory.machine.rdma_ctl != "enabled":
        return
    evidence = inventory.evidence(
        *(port.path for domain in inventory.thunderbolt for port in domain.ports if port.connected),
        *(port.path for device in inventory.rdma[:1] for port in device.ports),
        f"$ {RDMA_CTL}",
    )
    what = f"This Mac's sockets do {best:g} Gb/s (Thunderbolt 4): it has RDMA devices, but they never become active."
    why = "Programs that try RDMA wait for nothing. TCP over the cable works. " + costs.limit(
        costs.TCP_THUNDERBOLT, best / 2
    )
    cure = by_hand("Use TCP over the cable, with an address at each end. RDMA needs a Mac with Thunderbolt 5.")
    yield Finding("mac-no-rdma", "note", inventory.machine.product or "Mac", what, evidence, why, cure)


def _switched_off(inventory: Inventory) -> Iterator[Finding]:
    version = tuple(int(part) for part in re.findall("[0-9]{1,4}", inventory.machine.os_version or ""))
    why = costs.instead(_WITHOUT, _WITH)
    if version and version < FIRST_MACOS:
        what = f"macOS {inventory.machine.os_version} has no RDMA over Thunderbolt; 26.2 is the first."
        cure = (Cure("macos", "Update macOS on every Mac to the same build.", ("softwareupdate --list",)),)
        yield Finding("mac-too-old", "warning", "macOS", what, inventory.evidence(f"$ {SW_VERS}"), why, cure)
    elif inventory.machine.rdma_ctl is not None and "enabled" not in inventory.machine.rdma_ctl:
        what = "RDMA over Thunderbolt is switched off on this Mac."
        text = "Start into Recovery (hold the power button), open its Terminal, run this, restart. Do so on each Mac."
        cure = (Cure("macos", text, ("rdma_ctl enable",)),)
        yield Finding("mac-rdma-off", "warning", "rdma_ctl", what, inventory.evidence(f"$ {RDMA_CTL}"), why, cure)


def _port(inventory: Inventory, domain: ThunderboltDomain, peer: ThunderboltPeer) -> Iterator[Finding]:
    """A cable between two Macs whose RDMA is down although RDMA is on."""
    port = rdma_port(inventory, peer.netdevs)
    if port is None or port.state in (None, "ACTIVE") or inventory.machine.rdma_ctl != "enabled":
        return
    evidence = inventory.evidence(port.path, peer.path)
    why = "Everything between these two Macs goes over TCP, or over a third one. " + costs.instead(_WITHOUT, _WITH)
    if is_forbidden(inventory, domain):
        what = "The cable is in the socket beside Ethernet, the one socket of a Mac Studio that has no RDMA."
        free = [one.name for other in inventory.thunderbolt for one in other.ports if one.connected is False]
        text = (
            f"Move this end to a free socket: {', '.join(free)}."
            if free
            else "Swap this end with a cable that needs no RDMA."
        )
        yield Finding("mac-forbidden-port", "error", called(domain, peer), what, evidence, why, by_hand(text))
        return
    what = f"The cable is in, but RDMA on it is {port.state}."
    cure = by_hand(
        "Look at the other end: on a Mac Studio it must not be in the socket beside Ethernet. RDMA must be on there "
        "(`rdma_ctl status`), with the same build of macOS. Then pull the cable out at BOTH ends and push it in again."
    )
    yield Finding("rdma-port-down", "error", called(domain, peer), what, evidence, why, cure)

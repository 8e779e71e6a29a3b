"""Whether RDMA can be used from here: for programs that demand it, and would not notice that TCP took its place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ferrule._native import VerbsEndpoint
from ferrule.kmod.source import MODULE
from ferrule.kmod.state import State
from ferrule.links import UNLIMITED_BYTES
from ferrule.links.doctor.rdma import MEMLOCK_BYTES
from ferrule.units import format_bytes

if TYPE_CHECKING:  # the fabric imports numpy, and commands of the lab and the driver start without it
    from ferrule.fabric.transports.verbs.paths import Port
    from ferrule.fabric.transports.verbs.ports import Found

Opener = Callable[["Port"], None]
"""Makes a queue pair and registers memory on a port. Raises `OSError` with a reason."""


@dataclass(frozen=True, slots=True)
class Check:
    """``port``: its device, where it is about one. ``cure``: what helps, where it is not ``ok``."""

    what: str
    ok: bool
    cure: str = ""
    port: str = ""


def open_port(port: Port) -> None:
    """As a rank does it; it is closed again."""
    index = port.gids[0].index if port.gids else 0
    address = port.gids[0].address if port.wire == "iwarp" else ""
    kind = "UC" if sys.platform == "darwin" else "RC"
    VerbsEndpoint(port.device, port.number, index, kind, 0, address, True).close()


def check(state: State, found: Found, device: str = "", opener: Opener = open_port) -> tuple[Check, ...]:
    """``found``: the ports that Ferrule would use; ``device``: only that one will do. See `usable`."""
    ports = [port for port in found.ports if device in ("", port.device)]
    if not ports:
        return (_none(state, found, device), _memlock(state))
    checks = [one for port in ports for one in _port(state, port, opener)]
    return (*checks, _memlock(state))


def usable(checks: Sequence[Check]) -> bool:
    """Whether all is well of one port at least, and of what is about none."""
    ports = {one.port for one in checks if one.port}
    general = all(one.ok for one in checks if not one.port)
    return general and any(all(one.ok for one in checks if one.port == port) for port in ports)


def _none(state: State, found: Found, device: str) -> Check:
    if device and found.ports:
        names = ", ".join(dict.fromkeys(port.device for port in found.ports))
        return Check(f"{device} is no RDMA device with a link; there are {names}", False, "name one of those")
    what = f"no RDMA device can be used: {found.reason}"
    if state.loaded is None and state.inventory.peers and not state.inventory.rdma:
        cure = "a USB4 cable leads to another host: `sudo ferrule driver install` makes it an RDMA device"
    elif state.loaded is not None and not state.devices:
        cure = f"{MODULE} is loaded: load it at the other end of the cable, too, and see `sudo dmesg | grep {MODULE}`"
    else:
        cure = "`ferrule doctor` names what is wrong with the devices that there are"
    return Check(what, False, cure)


def _port(state: State, port: Port, opener: Opener) -> list[Check]:
    name = f"{port.device} port {port.number}"
    checks = [Check(f"{name} has a link", True, port=port.device)]
    if port.wire == "roce":
        good = any("." in gid.address for gid in port.gids)
        listed = ", ".join(f"{gid.address} (index {gid.index})" for gid in port.gids) or "none that leads to a peer"
        device = next((one for one in state.inventory.rdma if one.name == port.device), None)
        nets = [net for one in (device.ports if device else ()) for net in one.netdevs]
        name_of_net = nets[0] if nets else "INTERFACE"
        cure = f"give its interface an IPv4 address: sudo ip address add 10.77.0.1/24 dev {name_of_net}"
        checks.append(Check(f"{name}, its addresses: {listed}", good, "" if good else cure, port.device))
        if not port.gids:
            return checks
    try:
        opener(port)
    except OSError as error:
        cure = "the limit of locked memory is below" if "memory" in str(error) else "`ferrule driver status` says more"
        checks.append(Check(f"{name} cannot be opened: {error}", False, cure, port.device))
    else:
        checks.append(Check(f"{name} opens: queue pair made, memory registered", True, port=port.device))
    return checks


def _memlock(state: State) -> Check:
    soft = state.inventory.machine.memlock_bytes
    if soft is None:
        return Check("the limit of locked memory is not told", True)
    limit = "no limit" if soft == UNLIMITED_BYTES else format_bytes(soft)
    cure = (
        "raise it to 1 GiB or more (`ferrule doctor --fix`; services: LimitMEMLOCK=infinity; containers: --ulimit "
        "memlock=-1:-1), then log in again"
    )
    good = soft >= MEMLOCK_BYTES
    return Check(f"memory that may be locked: {limit}", good, "" if good else cure)

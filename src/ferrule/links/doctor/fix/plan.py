"""Choice of the findings that can be fixed, and how. Pure: what is to be done comes out as data."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Sequence

from ferrule.links.doctor.fix.actions import Command, Fix, Require, Step
from ferrule.links.doctor.fix.persist import MARK, give_address, is_shared, lasting, new_file, set_mtu
from ferrule.links.doctor.netdev import JUMBO, THUNDERBOLT_MTU, subnets
from ferrule.links.doctor.rdma import RDMA_MODULE
from ferrule.links.findings import Finding
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.net import NetDevice

LIMITS = "/etc/security/limits.d/90-ferrule-memlock.conf"
MANAGER = "/etc/systemd/system.conf.d/90-ferrule-memlock.conf"
_LOGIN = "after you log in again; for services after the next start"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_NETWORK = ipaddress.IPv4Network("10.77.0.0/16")


def plan_fixes(inventory: Inventory, findings: Sequence[Finding]) -> tuple[Fix, ...]:
    """A fix for each of this host's findings that has one, modules first: interfaces come with them."""
    if inventory.machine.system != "linux":
        return ()
    found = (_FIXES[one.id](inventory, one) for one in findings if one.id in _FIXES)
    return tuple(sorted((fix for fix in found if fix is not None), key=lambda fix: _ORDER.index(fix.finding)))


def load_module(module: str) -> tuple[Step, ...]:
    return (
        Step(Command(("modprobe", module), whole=True), Command(("modprobe", "-r", module))),
        new_file(f"/etc/modules-load.d/ferrule-{module}.conf", f"{MARK}{module}\n"),
    )


def start_opensm() -> tuple[Step, ...]:
    why = (
        "if it is not found, install it first (apt or dnf: opensm); if it is enabled, it was set up already: "
        "see `systemctl status opensm`"
    )
    enable, disable = (Command(("systemctl", what, "--now", "opensm")) for what in ("enable", "disable"))
    return (Step(Require(("systemctl", "is-enabled", "opensm"), ("disabled",), why)), Step(enable, disable))


def raise_memlock() -> tuple[Step, ...]:
    lines = (f"{who} {kind} memlock unlimited\n" for who in ("*", "root") for kind in ("soft", "hard"))
    limits = MARK + "".join(lines)
    return (new_file(LIMITS, limits), new_file(MANAGER, f"{MARK}[Manager]\nDefaultLimitMEMLOCK=infinity\n"))


def choose_address(inventory: Inventory, device: NetDevice) -> str | None:
    """An address of which the other end's fix chooses the neighbour, from the identities that both ends know.

    None where an end's identity is not known, or the subnet is in use already.
    """
    for domain in inventory.thunderbolt:
        for peer in domain.peers:
            mine = domain.host.identity if domain.host else None
            if device.name not in peer.netdevs or mine is None or peer.identity is None or mine == peer.identity:
                continue
            low, high = sorted((mine, peer.identity))
            third = hashlib.sha256(f"{low} {high}".encode()).digest()[0]
            net = ipaddress.IPv4Network((int(_NETWORK.network_address) + (third << 8), 24))
            taken = (other for one in inventory.netdevs for other in subnets(one))
            if any(other.version == 4 and other.overlaps(net) for other in taken):
                return None
            return f"{net[1 if mine == low else 2]}/24"
    return None


def _device(inventory: Inventory, finding: Finding) -> NetDevice | None:
    device = inventory.netdev(finding.subject)
    return device if device is not None and _NAME.fullmatch(device.name) else None


def _mtu(inventory: Inventory, finding: Finding) -> Fix | None:
    device = _device(inventory, finding)
    if device is None or device.mtu is None:
        return None
    best = THUNDERBOLT_MTU if device.kind == "thunderbolt" else JUMBO
    shared = is_shared(inventory, device.manager)
    lasts = lasting(device.manager, shared=shared)
    title = f"Set the MTU of {device.name} from {device.mtu} to {best}, {lasts}. Do the same at the other end."
    # An address is given first, in a file that this then adds to.
    alone = bool(subnets(device)) or choose_address(inventory, device) is None
    steps = set_mtu(device.name, device.mtu, best, None if shared else device.manager, alone=alone)
    return Fix(finding.id, finding.subject, title, steps)


def _address(inventory: Inventory, finding: Finding) -> Fix | None:
    device = _device(inventory, finding)
    address = choose_address(inventory, device) if device is not None else None
    if device is None or address is None:
        return None
    lasts = lasting(device.manager)
    title = f"Give {device.name} the address {address}, {lasts}. At the other end this chooses its neighbour."
    return Fix(finding.id, finding.subject, title, give_address(device.name, address, device.manager))


def _switch_on(inventory: Inventory, finding: Finding) -> Fix | None:
    device = _device(inventory, finding)
    if device is None:
        return None
    up, down = (("ip", "link", "set", "dev", device.name, what) for what in ("up", "down"))
    step = Step(Command(up, whole=True), Command(down, device.name))
    return Fix(finding.id, finding.subject, f"Switch {device.name} on.", (step,))


def _module(inventory: Inventory, finding: Finding) -> Fix | None:
    link = inventory.pcie_link(finding.subject)
    module = {"thunderbolt-net-missing": "thunderbolt_net", "rdma-no-uverbs": "ib_uverbs"}.get(finding.id)
    module = module or RDMA_MODULE.get((link.driver if link else None) or "")
    there = inventory.machine.available_modules
    if module is None or (there is not None and module not in there):
        return None
    title = f"Load the module {module}, now and at every start."
    return Fix(finding.id, finding.subject, title, load_module(module))


def _opensm(inventory: Inventory, finding: Finding) -> Fix | None:
    if not inventory.services:
        return None
    title = "Start the subnet manager opensm, now and at every start. Do this on ONE of the hosts only."
    return Fix(finding.id, finding.subject, title, start_opensm())


def _memlock(inventory: Inventory, finding: Finding) -> Fix | None:
    return Fix(finding.id, finding.subject, "Let every user lock all the memory they need.", raise_memlock(), _LOGIN)


_FIXES: dict[str, Callable[[Inventory, Finding], Fix | None]] = {
    "thunderbolt-net-missing": _module,
    "rdma-driver-missing": _module,
    "rdma-no-uverbs": _module,
    "interface-off": _switch_on,
    "no-address": _address,
    "mtu-small": _mtu,
    "rdma-no-subnet-manager": _opensm,
    "memlock-small": _memlock,
}
_ORDER = tuple(_FIXES)

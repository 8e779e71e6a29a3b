"""Which findings can be fixed, and how. Pure: what is to be done comes out as data."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import uuid
from collections.abc import Callable, Sequence

from ferrule.links.doctor.cures import keeps
from ferrule.links.doctor.fix.actions import Command, Fix, NewFile, RemoveFile, Require, Step
from ferrule.links.doctor.netdev import JUMBO, THUNDERBOLT_MTU, subnets
from ferrule.links.doctor.rdma import RDMA_MODULE
from ferrule.links.findings import Finding
from ferrule.links.types import Inventory, NetDevice

LIMITS = "/etc/security/limits.d/90-ferrule-memlock.conf"
MANAGER = "/etc/systemd/system.conf.d/90-ferrule-memlock.conf"
_LOGIN = "after you log in again; for services after the next start"
_MARK = "# Written by `ferrule doctor --fix`; `ferrule doctor --undo` takes it away.\n"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_NETWORK = ipaddress.IPv4Network("10.77.0.0/16")


def plan_fixes(inventory: Inventory, findings: Sequence[Finding]) -> tuple[Fix, ...]:
    """A fix for each of this host's findings that has one, modules first: interfaces come with them."""
    if inventory.machine.system != "linux":
        return ()
    found = (_FIXES[one.id](inventory, one) for one in findings if one.id in _FIXES)
    return tuple(sorted((fix for fix in found if fix is not None), key=lambda fix: _ORDER.index(fix.finding)))


def new_file(path: str, text: str, mode: int = 0o644) -> Step:
    return Step(NewFile(path, text, mode), RemoveFile(path, text))


def set_mtu(name: str, now: int, best: int, *, manager: bool) -> tuple[Step, ...]:
    """``manager``: whether NetworkManager sets it again whenever the cable comes up."""
    set_it, put_back = (("ip", "link", "set", "dev", name, "mtu", str(mtu)) for mtu in (best, now))
    steps = [Step(Command(set_it, whole=True), Command(put_back, name, f"mtu {best} "))]
    if manager:
        conf = f"{_MARK}[connection-ferrule-mtu-{name}]\nmatch-device=interface-name:{name}\nethernet.mtu={best}\n"
        reload = Command(("nmcli", "general", "reload", "conf"))
        steps += [
            Step(undo=reload),
            new_file(f"/etc/NetworkManager/conf.d/90-ferrule-mtu-{name}.conf", conf),
            Step(reload),
        ]
    return tuple(steps)


def give_address(name: str, address: str, *, manager: bool) -> tuple[Step, ...]:
    """For ever with NetworkManager, until the next start without."""
    if not manager:
        add, remove = (("ip", "address", what, address, "dev", name) for what in ("add", "del"))
        return (Step(Command(add, whole=True), Command(remove, name)),)
    path = f"/etc/NetworkManager/system-connections/ferrule-{name}.nmconnection"
    key = uuid.uuid5(uuid.NAMESPACE_URL, f"ferrule doctor {name} {address}")
    text = (
        f"{_MARK}[connection]\nid=ferrule-{name}\nuuid={key}\ntype=ethernet\ninterface-name={name}\n\n"
        f"[ipv4]\nmethod=manual\naddress1={address}\nnever-default=true\n\n[ipv6]\nmethod=link-local\n"
    )
    up, down = (Command(("nmcli", "connection", what, "uuid", str(key)), name) for what in ("up", "down"))
    return (
        Step(undo=Command(("nmcli", "connection", "reload"))),
        new_file(path, text, 0o600),
        Step(Command(("nmcli", "connection", "load", path))),
        Step(up, down),
    )


def load_module(module: str) -> tuple[Step, ...]:
    return (
        Step(Command(("modprobe", module), whole=True), Command(("modprobe", "-r", module))),
        new_file(f"/etc/modules-load.d/ferrule-{module}.conf", f"{_MARK}{module}\n"),
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
    limits = _MARK + "".join(lines)
    return (new_file(LIMITS, limits), new_file(MANAGER, f"{_MARK}[Manager]\nDefaultLimitMEMLOCK=infinity\n"))


def choose_address(inventory: Inventory, device: NetDevice) -> str | None:
    """An address of which the other end's fix chooses the neighbour, from the identities that both ends know.

    None where the ends do not tell who they are, or the subnet is in use already.
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


def _managed(inventory: Inventory) -> bool:
    return keeps(inventory) == "NetworkManager"


def _mtu(inventory: Inventory, finding: Finding) -> Fix | None:
    device = _device(inventory, finding)
    if device is None or device.mtu is None:
        return None
    best = THUNDERBOLT_MTU if device.kind == "thunderbolt" else JUMBO
    manager = _managed(inventory)
    lasting = "" if manager else " until the next start"
    title = f"Set the MTU of {device.name} from {device.mtu} to {best}{lasting}. Do the same at the other end."
    return Fix(finding.id, finding.subject, title, set_mtu(device.name, device.mtu, best, manager=manager))


def _address(inventory: Inventory, finding: Finding) -> Fix | None:
    device = _device(inventory, finding)
    address = choose_address(inventory, device) if device is not None else None
    if device is None or address is None:
        return None
    manager = _managed(inventory)
    lasting = "" if manager else " until the next start"
    title = f"Give {device.name} the address {address}{lasting}. At the other end this chooses its neighbour."
    return Fix(finding.id, finding.subject, title, give_address(device.name, address, manager=manager))


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

"""Steps that set an interface's MTU or address, now and so that it lasts, by the program that keeps its settings.

systemd-networkd, systemd.network(5): of all files that match an interface only the first one counts, so an MTU goes
into a drop-in of the file that is in use, and an address into a file of its own that comes first. netplan(5) merges
what all its files say. interfaces(5) allows several stanzas for one interface.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Sequence

from ferrule.links.doctor.fix.actions import Command, NewFile, RemoveFile, Step
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.net import NetManager

MARK = "# Written by `ferrule doctor --fix`; `ferrule doctor --undo` takes it away.\n"
NO_MANAGER = (
    "until the next start: nothing was found that keeps settings of this interface (NetworkManager, systemd-networkd, "
    "netplan, ifupdown)"
)
SHARED = "until the next start: its .network file is also that of other interfaces, which may not want it"
_NETWORKD = "/etc/systemd/network"


def new_file(path: str, text: str, mode: int = 0o644) -> Step:
    return Step(NewFile(path, text, mode), RemoveFile(path, text))


def lasting(manager: NetManager | None, *, shared: bool = False) -> str:
    """For a title: how long it lasts, and with whom."""
    if manager is None:
        return NO_MANAGER
    return SHARED if shared else f"to last, with {manager.program}"


def is_shared(inventory: Inventory, manager: NetManager | None) -> bool:
    """Whether a drop-in of the interface's .network file would reach other interfaces, too."""
    if manager is None or manager.program != "systemd-networkd" or manager.file is None:
        return False
    return sum(one.manager == manager for one in inventory.netdevs) > 1


def set_mtu(
    name: str, now: int, best: int, manager: NetManager | None = None, *, alone: bool = True
) -> tuple[Step, ...]:
    """``alone``: no other fix gives systemd-networkd a file for this interface."""
    set_it, put_back = (("ip", "link", "set", "dev", name, "mtu", str(mtu)) for mtu in (best, now))
    first = Step(Command(set_it, whole=True), Command(put_back, name, f"mtu {best} "))
    match manager.program if manager else None:
        case "NetworkManager":
            conf = f"{MARK}[connection-ferrule-mtu-{name}]\nmatch-device=interface-name:{name}\nethernet.mtu={best}\n"
            reload = (Command(("nmcli", "general", "reload", "conf")),)
            return (first, *_kept([(f"/etc/NetworkManager/conf.d/90-ferrule-mtu-{name}.conf", conf, 0o644)], reload))
        case "systemd-networkd":
            used = posixpath.basename(manager.file) if manager and manager.file else _own(name)
            files = [(f"{_NETWORKD}/{used}.d/90-ferrule-mtu.conf", f"{MARK}[Link]\nMTUBytes={best}\n", 0o644)]
            if alone and used == _own(name) and not (manager and manager.file):
                files.insert(0, _network_file(name, "KeepConfiguration=yes"))
            return (first, *_kept(files, _networkd(name)))
        case "netplan":
            return (first, *_kept([_plan(name, "mtu", f"mtu: {best}")], _netplan(name)))
        case "ifupdown":
            text = f"{MARK}iface {name} inet manual\n    up ip link set dev {name} mtu {best}\n"
            return (first, new_file(_stanza(name, "mtu-"), text))
        case _:
            return (first,)


def give_address(name: str, address: str, manager: NetManager | None = None) -> tuple[Step, ...]:
    add, remove = (("ip", "address", what, address, "dev", name) for what in ("add", "del"))
    first = Step(Command(add, whole=True), Command(remove, name))
    match manager.program if manager else None:
        case "NetworkManager":
            return _connection(name, address)
        case "systemd-networkd":
            return _kept([_network_file(name, f"Address={address}")], _networkd(name))
        case "netplan":
            return _kept([_plan(name, "address", f"addresses: [{address}]", "optional: true")], _netplan(name))
        case "ifupdown":
            text = f"{MARK}allow-hotplug {name}\niface {name} inet static\n    address {address}\n"
            return (first, new_file(_stanza(name, ""), text))
        case _:
            return (first,)


def _kept(files: Sequence[tuple[str, str, int]], reload: Sequence[Command]) -> tuple[Step, ...]:
    """Write the files, then have them read; to undo it, take them away and then have that read."""
    return (
        *(Step(undo=one) for one in reversed(reload)),
        *(new_file(path, text, mode) for path, text, mode in files),
        *(Step(one) for one in reload),
    )


def _own(name: str) -> str:
    """A name that sorts before what distributions and netplan write."""
    return f"05-ferrule-{name}.network"


def _network_file(name: str, setting: str) -> tuple[str, str, int]:
    """A start does not wait for a cable that is not in."""
    text = f"{MARK}[Match]\nName={name}\n\n[Link]\nRequiredForOnline=no\n\n[Network]\n{setting}\n"
    return f"{_NETWORKD}/{_own(name)}", text, 0o644


def _networkd(name: str) -> tuple[Command, ...]:
    return (Command(("networkctl", "reload")), Command(("networkctl", "reconfigure", name), name))


def _netplan(name: str) -> tuple[Command, ...]:
    return (Command(("netplan", "generate")), *_networkd(name))


def _plan(name: str, what: str, *settings: str) -> tuple[str, str, int]:
    """Only root may read it, or netplan warns."""
    lines = "".join(f"      {one}\n" for one in settings)
    text = f"{MARK}network:\n  version: 2\n  ethernets:\n    {name}:\n{lines}"
    return f"/etc/netplan/90-ferrule-{what}-{name}.yaml", text, 0o600


def _stanza(name: str, what: str) -> str:
    """Of names with dots some versions read nothing."""
    return f"/etc/network/interfaces.d/ferrule-{what}{name.replace('.', '-')}"


def _connection(name: str, address: str) -> tuple[Step, ...]:
    path = f"/etc/NetworkManager/system-connections/ferrule-{name}.nmconnection"
    key = uuid.uuid5(uuid.NAMESPACE_URL, f"ferrule doctor {name} {address}")
    text = (
        f"{MARK}[connection]\nid=ferrule-{name}\nuuid={key}\ntype=ethernet\ninterface-name={name}\n\n"
        f"[ipv4]\nmethod=manual\naddress1={address}\nnever-default=true\n\n[ipv6]\nmethod=link-local\n"
    )
    up, down = (Command(("nmcli", "connection", what, "uuid", str(key)), name) for what in ("up", "down"))
    return (
        Step(undo=Command(("nmcli", "connection", "reload"))),
        new_file(path, text, 0o600),
        Step(Command(("nmcli", "connection", "load", path))),
        Step(up, down),
    )

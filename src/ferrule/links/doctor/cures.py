"""Cures as commands for each family of distributions.

A `Cure` is for the family that `family` gives a machine: ``debian`` (with Ubuntu and what is made of them), ``fedora``
(with RHEL and its kin), ``arch``, ``macos``; or for ``any``.
"""

from __future__ import annotations

from ferrule.links.findings import Cure
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.machine import Machine

FAMILIES = {
    "debian": ("debian", "ubuntu", "linuxmint", "pop", "raspbian"),
    "fedora": ("fedora", "rhel", "centos", "rocky", "almalinux", "ol"),
    "arch": ("arch", "cachyos", "manjaro", "endeavouros", "steamos"),
    "macos": ("macos",),
}
_INSTALL = {
    "debian": "sudo apt install",
    "fedora": "sudo dnf install",
    "arch": "sudo pacman -S",
}


def family(machine: Machine) -> str:
    """The family of this machine's system; its own id where it is none of them."""
    for one in (machine.os_id, *machine.os_like):
        for name, members in FAMILIES.items():
            if one in members:
                return name
    return machine.os_id or machine.system


def relevant(cures: tuple[Cure, ...], machine: Machine | None) -> tuple[Cure, ...]:
    """Those for this machine; all of them if there is none for it, or no machine."""
    wanted = ("any",) if machine is None else (family(machine), "any")
    return tuple(one for one in cures if one.system in wanted) or cures


def by_hand(text: str) -> tuple[Cure, ...]:
    """Something that a person does."""
    return (Cure("any", text),)


def run(text: str, *commands: str) -> tuple[Cure, ...]:
    """The same commands everywhere."""
    return (Cure("any", text, commands),)


def install(text: str, packages: dict[str, str], *then: str) -> tuple[Cure, ...]:
    """Install packages, called differently on each family, and run ``then``."""
    return tuple(Cure(name, text, (f"{_INSTALL[name]} {packages[name]}", *then)) for name in _INSTALL)


def upgrade(text: str, packages: dict[str, str]) -> tuple[Cure, ...]:
    """Bring installed packages up to date; Debian's families have no name of the kernel in common, so all of them."""
    commands = {
        "debian": ("sudo apt update", f"sudo apt {packages['debian']}"),
        "fedora": (f"sudo dnf upgrade {packages['fedora']}",),
        "arch": (f"sudo pacman -Syu {packages['arch']}",),
    }
    return tuple(Cure(name, text, found) for name, found in commands.items())


def manager_of(inventory: Inventory, name: str) -> str | None:
    """The program that keeps this interface's settings; None if none was found."""
    device = inventory.netdev(name)
    return device.manager.program if device is not None and device.manager is not None else None


def set_mtu(inventory: Inventory, name: str, mtu: int) -> tuple[Cure, ...]:
    """Now, and after the next start where the interface's network manager is known."""
    if inventory.machine.system == "macos":
        commands = (f"networksetup -listValidMTURange {name}", f"sudo networksetup -setMTU {name} {mtu}")
        return (
            Cure("macos", "Raise the MTU at both ends, if the range that the first command tells allows it.", commands),
        )
    now = f"sudo ip link set {name} mtu {mtu}"
    manager = manager_of(inventory, name)
    if manager == "NetworkManager":
        keep = (
            f'sudo nmcli connection modify "$(nmcli -g GENERAL.CONNECTION device show {name})" 802-3-ethernet.mtu {mtu}'
        )
        return run("Raise the MTU, at both ends. (`ferrule doctor --fix` does it here, to last.)", now, keep)
    lasts = f"here, to last, with {manager}" if manager else "here"
    return run(
        f"Raise the MTU, at both ends. This lasts until the next start. (`ferrule doctor --fix` does it {lasts}.)", now
    )


def set_address(inventory: Inventory, name: str, address: str = "10.77.0.1/24") -> tuple[Cure, ...]:
    """An address of a subnet that is used nowhere else, with the last number differing between the two ends."""
    text = f"Give each end an address in a subnet of its own: here such as {address}, at the other end the next one."
    if inventory.machine.system == "macos":
        host = address.partition("/")[0]
        return (Cure("macos", text, (f"sudo ipconfig set {name} MANUAL {host} 255.255.255.0",)),)
    manager = manager_of(inventory, name)
    if manager == "NetworkManager":
        kept = f"sudo nmcli connection add type ethernet ifname {name} con-name ferrule-{name}"
        return run(text, f"{kept} ipv4.method manual ipv4.addresses {address}")
    lasts = f" (`ferrule doctor --fix` does it to last, with {manager}.)" if manager else ""
    return run(f"{text} This lasts until the next start.{lasts}", f"sudo ip address add {address} dev {name}")


def load_module(name: str) -> tuple[Cure, ...]:
    kept = f"echo {name} | sudo tee /etc/modules-load.d/ferrule-{name}.conf"
    return run("Load it now and at every start. (`ferrule doctor --fix` does it.)", f"sudo modprobe {name}", kept)

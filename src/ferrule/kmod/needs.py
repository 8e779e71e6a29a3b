"""Requirements of the driver that a machine lacks, and how to get them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ferrule.kmod.source import OLDEST_KERNEL, PACKAGE
from ferrule.kmod.state import State

_PACKAGES = {"modprobe": "kmod"}
"""Of programs that are not in a package of their own name."""
_PROVIDER = {
    "debian": ("rdma-core", "ibverbs-providers"),
    "fedora": ("rdma-core", "libibverbs"),
    "arch": ("rdma-core",),
}
_INSTALL = {
    "debian": ("apt-get", "install", "-y"),
    "fedora": ("dnf", "install", "-y"),
    "arch": ("pacman", "-S", "--noconfirm", "--needed"),
}


@dataclass(frozen=True, slots=True)
class Need:
    """``packages``: the distribution's, that help; ``commands``: what a person does. ``stops``: installing makes no
    sense without. ``forced``: `--force` goes on all the same."""

    what: str
    packages: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    stops: bool = True
    forced: bool = False


def needs(state: State) -> tuple[Need, ...]:
    """All at once, so that the user need not come back for the next one."""
    return tuple(_needs(state))


def install_command(state: State, packages: Sequence[str]) -> tuple[str, ...]:
    """Command by which this distribution installs packages, as root; empty where that is not known."""
    return (*_INSTALL[state.family], *packages) if packages and state.family in _INSTALL else ()


def packages_of(found: Sequence[Need]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for need in found for name in need.packages))


def header_packages(state: State) -> tuple[str, ...]:
    """The packages with what modules for this kernel are built from; where there is one, also that which brings them
    along with every new kernel, as DKMS builds for none without."""
    kernel = state.kernel
    match state.family:
        case "debian" if kernel.endswith("-pve"):
            return (f"proxmox-headers-{kernel}", "proxmox-default-headers")
        case "debian" if state.inventory.machine.os_id == "debian":
            flavour = re.search(r"-((?:cloud-|rt-)?(?:amd64|arm64))$", kernel)
            always = (f"linux-headers-{flavour[1]}",) if flavour else ()
            return (f"linux-headers-{kernel}", *always)
        case "debian":
            return (f"linux-headers-{kernel}",)
        case "fedora":
            return (f"kernel-devel-{kernel}",)
        case "arch":
            return (f"{state.kernel_package or 'linux'}-headers",)
        case _:
            return ()


def _needs(state: State) -> Iterator[Need]:
    machine = state.inventory.machine
    if machine.system != "linux":
        yield Need(f"Linux: the driver is a kernel module, and this is {machine.os_name or machine.system}")
        return
    version = re.match(r"([0-9]{1,3})\.([0-9]{1,4})", state.kernel)
    if version and (int(version[1]), int(version[2])) < OLDEST_KERNEL:
        yield Need(f"kernel {'.'.join(map(str, OLDEST_KERNEL))} or newer; this is {state.kernel}")
    if state.package:
        yield Need(
            f"that the driver is not installed twice: the package {PACKAGE}-dkms {state.package} has it",
            commands=(f"sudo apt-get purge {PACKAGE}-dkms",),
        )
    yield from _building(state)
    if not state.inventory.thunderbolt:
        yield from _controller(state)
    if state.signing.required:
        yield from _signed(state)
    if state.users:
        yield Need(f"that nothing uses the driver that is loaded; {state.users} do now: end the programs that use RDMA")
    if not state.provider:
        yield Need(
            "rdma-core with its provider for soft-RoCE (librxe), by which programs speak to our devices",
            packages=_PROVIDER.get(state.family, ()),
            stops=False,
        )


def _building(state: State) -> Iterator[Need]:
    wanted = ["dkms", "make", "gcc", "modprobe"] + (["mokutil"] if state.signing.required else [])
    for name in wanted:
        if name not in state.programs:
            known = state.family in _INSTALL
            yield Need(f"the program {name}", packages=(_PACKAGES.get(name, name),) if known else ())
    if not state.headers:
        what = f"the headers of the kernel that runs ({state.kernel}): /lib/modules/{state.kernel}/build is not there"
        yield Need(what, packages=header_packages(state))


def _controller(state: State) -> Iterator[Need]:
    commands: tuple[str, ...]
    if state.inventory.machine.module("thunderbolt") is None:
        what = "a USB4 or Thunderbolt host controller: the kernel shows none, and its module thunderbolt is not loaded"
        commands = ("sudo modprobe thunderbolt", "lspci -nn | grep -i -e usb4 -e thunderbolt")
    else:
        what = "a USB4 or Thunderbolt host controller: the module thunderbolt is loaded and shows none"
        commands = ("lspci -nn | grep -i -e usb4 -e thunderbolt",)
    yield Need(f"{what} (some firmware can switch it off)", commands=commands, forced=True)


def _signed(state: State) -> Iterator[Need]:
    """The key first: a module that is refused would only be half of an installation."""
    signing = state.signing
    enroll = (f"sudo mokutil --import {signing.certificate}", "sudo reboot")
    why = "this kernel takes only signed modules" + (" (Secure Boot is on)" if signing.secure_boot else "")
    asked = "mokutil asks for a password of your choice; at the next start choose Enroll MOK on the blue screen"
    if not signing.certificate_there:
        make = (
            'sudo openssl req -new -x509 -nodes -days 36500 -subj "/CN=DKMS module signing key" -newkey rsa:2048 '
            f"-keyout {signing.key} -outform DER -out {signing.certificate}"
        )
        what = f"a key to sign with, that the firmware trusts: {why}, and DKMS has no key yet. {asked}"
        packages = () if "openssl" in state.programs else ("openssl",)
        yield Need(what, packages=packages, commands=(make, *enroll))
    elif signing.trust == "pending":
        what = f"a restart: {why}, and DKMS's key waits to be enrolled. Choose Enroll MOK on the blue screen"
        yield Need(what, commands=("sudo reboot",))
    elif signing.trust == "untrusted":
        what = f"that the firmware trusts the key that DKMS signs with: {why}. {asked}"
        yield Need(what, commands=enroll)
    elif signing.trust == "unknown" and "mokutil" in state.programs:
        what = f"to know whether the firmware trusts {signing.certificate}: {why}, and mokutil did not tell"
        commands = (f"sudo mokutil --test-key {signing.certificate}",)
        yield Need(what, commands=commands, forced=True)

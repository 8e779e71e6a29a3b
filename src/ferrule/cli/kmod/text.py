"""Text and JSON output of `ferrule driver`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import msgspec
from rich.text import Text

from ferrule.kmod import MODULE, Check, Need, State, install_command, needs, packages_of
from ferrule.kmod.state import Built, Record, Signing
from ferrule.links import UNLIMITED_BYTES
from ferrule.units import format_bytes

_WIDTH = 13


def state_text(state: State, brought: str) -> Iterator[Text]:
    """``brought``: the version that comes with this Ferrule."""
    machine = state.inventory.machine
    headers = "its headers are here" if state.headers else "its headers are not here"
    yield _line("kernel", f"{state.kernel or 'none'}, {headers}; {f'DKMS {state.dkms}' if state.dkms else 'no DKMS'}")
    yield _line("Secure Boot", _secure_boot(state))
    yield _line("driver", _driver(state, brought))
    peers = len(state.inventory.peers)
    loaded = "" if machine.module("thunderbolt") else " (the module thunderbolt is not loaded)"
    controllers = len(state.inventory.thunderbolt)
    yield _line("USB4", f"controllers: {controllers}, cables to other hosts: {peers}{loaded}")
    devices = [one for one in state.inventory.rdma if one.driver == MODULE]
    for device in devices:
        for port in device.ports:
            addresses = ", ".join(gid.address for gid in port.gids if gid.address and "." in gid.address)
            yield _line("RDMA", f"{device.name}: {port.state or 'unknown'}, {addresses or 'no IPv4 address'}")
    if not devices:
        yield _line("RDMA", "no device of this driver")
    yield _line("rdma-core", state.provider or "its provider for our devices (librxe) is not installed")
    memlock = machine.memlock_bytes
    limit = "not told" if memlock is None else "no limit" if memlock == UNLIMITED_BYTES else format_bytes(memlock)
    yield _line("memory lock", limit)
    lacking = needs(state)
    if lacking:
        yield Text("")
        yield from needs_text(state, lacking)
    elif state.loaded != brought:
        yield Text('\nsudo "$(command -v ferrule)" driver install')


def needs_text(state: State, lacking: Sequence[Need]) -> Iterator[Text]:
    """Missing things, each with its commands, and one command for all packages."""
    if not lacking:
        return
    yield Text("Missing:", style="bold")
    for need in lacking:
        yield Text("  * ", style="bold red" if need.stops else "bold yellow") + Text(need.what)
        for command in need.commands:
            yield Text(f"      {command}")
    packages = packages_of(lacking)
    install = install_command(state, packages)
    if install:
        yield Text(f"  packages (or give --packages): sudo {shlex.join(one for one in install if one not in _QUIET)}")
    elif packages:
        yield Text(f"  packages: {' '.join(packages)}")
    yield Text("")


_QUIET = ("-y", "--noconfirm")


def _line(name: str, value: str) -> Text:
    return Text(f"{name:<{_WIDTH}}", style="bold") + Text(value)


def _secure_boot(state: State) -> str:
    signing = state.signing
    on = {True: "on", False: "off", None: "not told (no UEFI, or it cannot be read)"}[signing.secure_boot]
    if not signing.required:
        return f"{on}; this kernel takes modules that are not signed"
    key = f"the key {signing.certificate} is {signing.trust}" if signing.certificate_there else "DKMS has no key yet"
    return f"{on}; this kernel takes only signed modules; {key}"


def _driver(state: State, brought: str) -> str:
    if state.record is not None and state.record.phase != "installed":
        begun = f"{state.record.phase} {state.record.version}"
        return f"{begun} was not finished; `ferrule driver install` or `uninstall` go on"
    here = [one for one in state.built if one.kernel == state.kernel]
    if state.loaded is None:
        if not here:
            others = ", ".join(f"{one.version} for {one.kernel}" for one in state.built if one.kernel)
            return "not installed" + (f" for this kernel; there is {others}" if others else "")
        return f"{here[0].version} is {here[0].status} and not loaded"
    if state.loaded == brought:
        return f"{MODULE} {brought} is loaded" + (f", signed by {state.signer}" if state.signer else "")
    return f"{MODULE} {state.loaded or 'of unknown version'} is loaded; this Ferrule brings {brought}"


class DeviceJson(msgspec.Struct, frozen=True):
    """A port of one of our RDMA devices."""

    name: str
    port: int
    state: str | None
    addresses: tuple[str | None, ...]


class StateJson(msgspec.Struct, frozen=True):
    """Output of `ferrule driver status --json`. ``brought``: the version that comes with this Ferrule; the others as
    in `State`."""

    brought: str
    loaded: str | None
    on_disk: str | None
    signer: str
    built: tuple[Built, ...]
    record: Record | None
    package: str
    kernel: str
    headers: bool
    dkms: str
    signing: Signing
    thunderbolt_loaded: bool
    controllers: tuple[str, ...]
    peers: tuple[str, ...]
    devices: tuple[DeviceJson, ...]
    provider: str
    memlock_bytes: int | None
    memlock_unlimited: bool
    needs: tuple[Need, ...]


def state_json(state: State, brought: str) -> StateJson:
    machine = state.inventory.machine
    unlimited = machine.memlock_bytes == UNLIMITED_BYTES
    return StateJson(
        brought=brought,
        loaded=state.loaded,
        on_disk=state.on_disk,
        signer=state.signer,
        built=state.built,
        record=state.record,
        package=state.package,
        kernel=state.kernel,
        headers=state.headers,
        dkms=state.dkms,
        signing=state.signing,
        thunderbolt_loaded=machine.module("thunderbolt") is not None,
        controllers=tuple(one.pci_address or one.name for one in state.inventory.thunderbolt),
        peers=tuple(one.name for one in state.inventory.peers),
        devices=tuple(
            DeviceJson(one.name, port.number, port.state, tuple(gid.address for gid in port.gids))
            for one in state.inventory.rdma
            if one.driver == MODULE
            for port in one.ports
        ),
        provider=state.provider,
        memlock_bytes=None if unlimited else machine.memlock_bytes,
        memlock_unlimited=unlimited,
        needs=needs(state),
    )


def checks_text(checks: Sequence[Check]) -> Iterator[Text]:
    for one in checks:
        yield Text("ok    " if one.ok else "FAIL  ", style="green" if one.ok else "bold red") + Text(one.what)
        if one.cure:
            yield Text(f"      {one.cure}")

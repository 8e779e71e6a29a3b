"""Tables of `ferrule links show`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ferrule.cli.output import new_table
from ferrule.links import (
    UNLIMITED_BYTES,
    ComputeDevice,
    Inventory,
    Machine,
    NetDevice,
    PcieLink,
    RdmaDevice,
    RdmaPort,
    ThunderboltDomain,
    ThunderboltPeer,
)
from ferrule.units import format_bytes

_MAX_UNREADABLE = 12
_GENERATIONS = {2.5: "1.0", 5.0: "2.0", 8.0: "3.0", 16.0: "4.0", 32.0: "5.0", 64.0: "6.0"}
"""Of PCI Express, by gigatransfers per second."""


def overview(inventory: Inventory) -> Iterator[RenderableType]:
    """The machine, then a table per kind of thing that it has; what was measured belongs after the cables."""
    yield from machine_lines(inventory.machine)
    firewalls = [one for one in inventory.firewalls if one.active is not False]
    if firewalls:
        yield Text("firewall: " + ", ".join(one.kind if one.active else f"{one.kind} (unknown)" for one in firewalls))
    yield Text("")
    if inventory.thunderbolt:
        yield cables_table(inventory)
    yield interfaces_table(inventory)
    if inventory.rdma:
        yield rdma_table(inventory.rdma)
    if inventory.pcie:
        yield pcie_table(inventory.pcie)
    if inventory.devices:
        yield devices_table(inventory.devices)
    yield from _unreadable(inventory)


def machine_lines(machine: Machine) -> Iterator[Text]:
    """Name and model; system; what of the system matters to cables."""
    model = " ".join(filter(None, (machine.vendor, machine.product)))
    title = Text(machine.name or "this machine", style="bold")
    yield title + Text(f"  {model}" if model else "")
    memory = format_bytes(machine.memory_bytes) if machine.memory_bytes is not None else None
    cpus = f"{machine.cpus} CPUs" if machine.cpus is not None else None
    yield Text(", ".join(filter(None, (machine.cpu, cpus, memory))))
    kernel = f"kernel {machine.kernel}" if machine.kernel else None
    yield Text(", ".join(filter(None, (machine.os_name, kernel, machine.architecture))))
    facts = {
        "IOMMU": machine.iommu.mode if machine.iommu else None,
        "Secure Boot": {True: "on", False: "off", None: None}[machine.secure_boot],
        "memlock": _limit(machine.memlock_bytes),
        "clock": _clock(machine),
        "rdma_ctl": machine.rdma_ctl,
    }
    yield Text(", ".join(f"{name}: {value}" for name, value in facts.items() if value))


def cables_table(inventory: Inventory) -> Table:
    """A row per cable, dock or empty socket; Gb/s as lanes times speed, from there to here and back."""
    table = _table("USB4 and Thunderbolt (Gb/s)", "socket", "to", ">!in", ">!out", "interface", "services")
    for domain in inventory.thunderbolt:
        rows = [*(_peer_row(one) for one in domain.peers), *_device_rows(domain)]
        for name, *cells in rows or _empty_rows(domain):
            # A Mac's sockets have numbers of their own; Linux numbers them anew on each controller.
            table.add_row(name if inventory.machine.system == "macos" else f"{domain.name} {name}", *cells)
    return table


def _peer_row(peer: ThunderboltPeer) -> tuple[str, ...]:
    rates = (
        _rate(peer.rx_lanes, peer.rx_speed_gb_s, peer.rx_gb_s),
        _rate(peer.tx_lanes, peer.tx_speed_gb_s, peer.tx_gb_s),
    )
    services = ", ".join(one.key for one in peer.services if one.key)
    return peer.name if peer.port is None else peer.port, _who(peer), *rates, ", ".join(peer.netdevs), services


def _who(peer: ThunderboltPeer) -> str:
    return " ".join(filter(None, (peer.device or peer.name, f"({peer.vendor})" if peer.vendor else None)))


def _device_rows(domain: ThunderboltDomain) -> Iterator[tuple[str, ...]]:
    for one in domain.devices:
        name = " ".join(filter(None, (one.vendor, one.device))) or one.name
        rates = (_rate(one.rx_lanes, one.rx_speed_gb_s, None), _rate(one.tx_lanes, one.tx_speed_gb_s, None))
        yield (one.name, f"{name}, no computer", *rates, "", "")


def _empty_rows(domain: ThunderboltDomain) -> list[tuple[str, ...]]:
    ports = [(one.name, "nothing" if one.connected is False else "?", one.netdev or "") for one in domain.ports]
    return [(name, what, "", "", netdev, "") for name, what, netdev in ports or [("", "nothing", "")]]


def _rate(lanes: int | None, speed: float | None, whole: float | None) -> str:
    if lanes is not None and speed is not None:
        return f"{lanes}×{speed:g}"
    return "" if whole is None else f"{whole:g}"


def interfaces_table(inventory: Inventory) -> Table:
    """A row per network interface, those that only exist in the kernel last."""
    table = _table("Network interfaces", "name", "kind", "state", ">!Gb/s", ">!MTU", "address", ">!errors")
    ordered = sorted(inventory.netdevs, key=lambda one: one.kind in ("virtual", "loopback"))
    for one in ordered:
        if one.kind == "loopback" or (one.kind == "virtual" and not one.addresses):
            continue
        addresses = [f"{address.address}/{address.prefix}" for address in one.addresses if address.scope != "link"]
        table.add_row(
            one.name,
            one.label or one.kind,  # a Mac's own name for it, such as ``Thunderbolt 1``, says more
            _state(one),
            "" if one.speed_gb_s is None else f"{one.speed_gb_s:g}",
            "" if one.mtu is None else str(one.mtu),
            "\n".join(addresses),
            _errors(one),
        )
    return table


def _state(one: NetDevice) -> Text:
    if one.enabled is False:
        return Text("off", style="dim")
    if one.carrier is None:
        return Text(one.operstate or "?", style="dim")
    state = Text("up", style="green") if one.carrier else Text("no link", style="yellow")
    return state + Text(f" in {one.master}", style="yellow") if one.master else state


def _errors(one: NetDevice) -> str:
    counted = (one.counters.rx_errors, one.counters.tx_errors)
    return "" if None in counted else str(sum(number or 0 for number in counted))


def rdma_table(devices: Sequence[RdmaDevice]) -> Table:
    """A row per port, called ``device:port`` as programs that use them do."""
    table = _table("RDMA", "port", "state", ">!Gb/s", "wire", "interface", "GIDs")
    for device in devices:
        for port in device.ports:
            table.add_row(
                f"{device.name}:{port.number}",
                Text(port.state or "?", style="green" if port.state == "ACTIVE" else "yellow"),
                "" if port.rate_gb_s is None else f"{port.rate_gb_s:g}",
                f"{port.link_layer or ''} (software)" if device.software else port.link_layer or "",
                ", ".join(port.netdevs),
                _gids(port),
            )
    return table


def _gids(port: RdmaPort) -> str:
    """Such as ``3: 10.0.0.1 v2``: index, address, version of RoCE."""
    return "\n".join(
        f"{gid.index}: {gid.address or gid.value} {(gid.type or '').removeprefix('RoCE ')}".strip() for gid in port.gids
    )


def pcie_table(links: Sequence[PcieLink]) -> Table:
    """A row per adapter: what its link does, what it could do, and what its slot could."""
    table = _table("PCIe (generation ×lanes)", "address", "what", "now", "card can", "slot can", ">!Gb/s")
    for link in links:
        now, most = _lanes(link.current_gt_s, link.current_width), _lanes(link.max_gt_s, link.max_width)
        table.add_row(
            link.address,
            " ".join(filter(None, (link.vendor, link.device))),
            Text(now, style="yellow" if now and most and now != most else ""),
            most,
            _lanes(link.slot.max_gt_s, link.slot.max_width) if link.slot else "",
            "" if link.current_gb_s is None else f"{link.current_gb_s:.0f}",
        )
    return table


def devices_table(devices: Sequence[ComputeDevice]) -> Table:
    """A row per GPU. Its link is told as it is now: a card that rests slows it down."""
    table = _table("Devices", "!address", "what", "--device", "!for", "driver", ">memory", "!PCIe now")
    for one in devices:
        memory = "?" if one.memory_bytes is None else format_bytes(one.memory_bytes)
        table.add_row(
            one.address,
            one.name,
            one.kind,
            one.architecture or "?",
            " ".join(filter(None, (one.driver or "none", one.driver_version))),
            f"{memory} of the host's" if one.unified else memory,
            "" if one.unified or one.link is None else _lanes(one.link.current_gt_s, one.link.current_width),
        )
    return table


def _lanes(gt_s: float | None, width: int | None) -> str:
    return "" if gt_s is None or width is None else f"{_GENERATIONS.get(gt_s, f'{gt_s:g} GT/s')} ×{width}"


def _limit(limit: int | None) -> str | None:
    return None if limit is None else "unlimited" if limit == UNLIMITED_BYTES else format_bytes(limit)


def _clock(machine: Machine) -> str | None:
    if machine.clock is None or machine.clock.synchronized is None:
        return None
    return "synchronized" if machine.clock.synchronized else "not synchronized"


def _unreadable(inventory: Inventory) -> Iterator[Text]:
    if inventory.unreadable:
        yield Text(f"could not be read ({len(inventory.unreadable)}):", style="yellow")
    for one in inventory.unreadable[:_MAX_UNREADABLE]:
        yield Text(f"  {one.path}: {one.why}")
    if len(inventory.unreadable) > _MAX_UNREADABLE:
        yield Text("  and more; --json lists all")


def _table(title: str, *columns: str) -> Table:
    return new_table(*columns, title=title, title_justify="left", title_style="bold", header_style="dim")

"""Network interfaces: speed, MTU, addresses, errors, and whether traffic takes the cable at all."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator

from ferrule.links.doctor import costs
from ferrule.links.doctor.cures import by_hand, manager_of, run, set_address, set_mtu
from ferrule.links.findings import Cure, Finding, Severity
from ferrule.links.linux.addresses import ADDRESS, ROUTES
from ferrule.links.macos.net import COUNTERS, IFCONFIG
from ferrule.links.macos.net import ROUTES as MAC_ROUTES
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.net import NetDevice, Route

CABLES = ("thunderbolt", "ethernet", "infiniband")
JUMBO = 9000
THUNDERBOLT_MTU = 65520
FAST_MBPS = 10_000
_DROPS = 1e-3

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def check(inventory: Inventory) -> Iterator[Finding]:
    for one in inventory.netdevs:
        if one.kind in (*CABLES, "virtual"):  # a lab's cables are virtual
            yield from _carrier(inventory, one)
        if one.kind in CABLES:
            yield from _off(inventory, one)
            yield from _address(inventory, one)
            yield from _mtu(inventory, one)
            yield from _speed(inventory, one)
            yield from _duplex(inventory, one)
            yield from _errors(inventory, one)
    yield from _same_subnet(inventory)
    yield from _default_route(inventory)


def usable(one: NetDevice) -> bool:
    """Can carry packets now, as far as is known."""
    return one.enabled is not False and one.carrier is not False


def subnets(one: NetDevice) -> tuple[Network, ...]:
    """Those of its addresses that are not only for this wire or this host."""
    return tuple(
        ipaddress.ip_interface(f"{address.address}/{address.prefix}").network
        for address in one.addresses
        if address.scope not in ("link", "host") and not ipaddress.ip_address(address.address).is_link_local
    )


def addresses_evidence(inventory: Inventory, *names: str) -> tuple[tuple[str, str], ...]:
    """Evidence on these interfaces' addresses, a line of the system's output each."""
    where = f"$ {IFCONFIG}" if inventory.machine.system == "macos" else f"$ {ADDRESS}"
    if where not in inventory.seen:
        where = "/proc/net/fib_trie"
    found = []
    for name in names:
        one = inventory.netdev(name)
        told = ", ".join(f"{address.address}/{address.prefix}" for address in one.addresses) if one else ""
        found.append((where, f"{name}: {told or 'no address'}"))
    return tuple(found)


def default_routes(inventory: Inventory) -> list[Route]:
    """Those of IPv4, the one in use first."""
    found = [one for one in inventory.routes if one.destination == "default" and one.version != 6 and one.netdev]
    return sorted(found, key=lambda one: one.metric or 0)


def _off(inventory: Inventory, one: NetDevice) -> Iterator[Finding]:
    if one.kind != "thunderbolt" or one.enabled is not False or one.thunderbolt is None:
        return
    what = "The cable's interface is switched off."
    why = "Nothing goes over the cable until it is on."
    cure = run("Switch it on; then give it an address.", f"sudo ip link set {one.name} up")
    evidence = inventory.evidence(f"{one.path}/flags", one.path)
    yield Finding("interface-off", "error", one.name, what, evidence, why, cure)


def _carrier(inventory: Inventory, one: NetDevice) -> Iterator[Finding]:
    if one.enabled is False or one.carrier is not False or not subnets(one):
        return
    what = "It has an address but no link: the other end is off, or the cable is out or broken."
    why = "Packets to that subnet go nowhere, and programs wait for them until they give up."
    cure = by_hand("Check both plugs and that the other machine is on; then try another cable.")
    evidence = inventory.evidence(f"{one.path}/carrier", one.path)
    yield Finding("no-carrier", "warning", one.name, what, evidence, why, cure)


def _address(inventory: Inventory, one: NetDevice) -> Iterator[Finding]:
    fast = one.kind == "thunderbolt" or (one.kind == "ethernet" and (one.speed_mbps or 0) >= FAST_MBPS)
    if not fast or one.carrier is not True or one.enabled is False or one.master is not None or subnets(one):
        return
    what = "The cable is up but has no address, so no program uses it."
    why = "Traffic takes another way, such as a slower network or Wi-Fi, without a word."
    cure = set_address(inventory, one.name)
    if one.kind == "thunderbolt" and inventory.machine.system == "linux":
        cure += by_hand("Or `sudo ferrule doctor --fix` at both ends, which choose addresses that fit each other.")
    yield Finding("no-address", "error", one.name, what, addresses_evidence(inventory, one.name), why, cure)


def _mtu(inventory: Inventory, one: NetDevice) -> Iterator[Finding]:
    """An interface with the way to the internet is left alone: larger frames would not pass the router."""
    if one.mtu is None or one.mtu >= JUMBO or one.carrier is not True or one.enabled is False:
        return
    gateways = [route.netdev for route in default_routes(inventory)]
    tunnel = one.kind == "thunderbolt"
    fast = tunnel or (one.kind == "ethernet" and (one.speed_mbps or 0) >= FAST_MBPS)
    if not fast or one.name in gateways or _rdma_runs(inventory, one):
        return
    best = JUMBO if inventory.machine.system == "macos" or not tunnel else THUNDERBOLT_MTU
    what = f"The MTU is {one.mtu}; {best} is possible."
    why = (
        f"Large messages are cut into {round(best / max(one.mtu, 1))} times as many packets, and each costs processor "
        "time: on fast cables that, not the cable, limits prompts, loading and training. Small messages do not care."
    )
    evidence = inventory.evidence(f"{one.path}/mtu", one.path)
    severity: Severity = "note" if inventory.machine.system == "macos" else "warning"
    yield Finding("mtu-small", severity, one.name, what, evidence[:1], why, set_mtu(inventory, one.name, best))


def _rdma_runs(inventory: Inventory, one: NetDevice) -> bool:
    """On a Mac with RDMA, tensors do not pass the interface."""
    if inventory.machine.system != "macos":
        return False
    ports = (port for device in inventory.rdma for port in device.ports)
    return any(port.state == "ACTIVE" and one.name in port.netdevs for port in ports)


def _speed(inventory: Inventory, one: NetDevice) -> Iterator[Finding]:
    """The name of the adapter tells what it can do."""
    card = inventory.pcie_link(one.pci_address)
    match = re.search(r"([0-9.]+) ?GbE", (card.device if card else None) or "")
    if match is None or one.speed_mbps is None or one.carrier is not True or one.kind != "ethernet":
        return
    best = float(match[1])
    now = one.speed_mbps / 1000
    if now >= best:
        return
    others = [other for other in inventory.netdevs if other is not one and other.kind in CABLES and usable(other)]
    faster = any(other.kind == "thunderbolt" or (other.speed_mbps or 0) > one.speed_mbps for other in others)
    what = f"The link runs at {now:g} Gb/s; the adapter can do {best:g}."
    why = costs.instead((costs.TCP_ETHERNET, now), (costs.TCP_ETHERNET, best))
    if faster:
        why = "Another interface of this machine is faster; use that one for tensors, and nothing is lost."
    cure = by_hand("The switch or the other end may be the slower one. If not, try another cable: Cat 6A for 10 Gb/s.")
    evidence = inventory.evidence(f"{one.path}/speed", one.path)[:1]
    yield Finding("speed-below-card", "note" if faster else "warning", one.name, what, evidence, why, cure)


def _duplex(inventory: Inventory, one: NetDevice) -> Iterator[Finding]:
    if one.duplex != "half" or one.carrier is not True:
        return
    what = "The link is half duplex: it sends or receives, not both."
    why = "Both ranks send at once in every all-reduce, so each of 160 messages per token collides with its answer."
    cure = run(
        "Let both ends negotiate; a fixed setting at one end gives this. Then try another cable.",
        f"sudo ethtool -s {one.name} autoneg on",
    )
    yield Finding(
        "half-duplex", "warning", one.name, what, inventory.evidence(f"{one.path}/duplex", one.path)[:1], why, cure
    )


def _errors(inventory: Inventory, one: NetDevice) -> Iterator[Finding]:
    counters = one.counters
    names = ("rx_errors", "tx_errors", "rx_crc_errors", "tx_carrier_errors", "collisions")
    bad = {name: value for name in names if (value := getattr(counters, name))}
    dropped = {
        name: value for name in ("rx_dropped", "rx_missed_errors", "tx_dropped") if (value := getattr(counters, name))
    }
    packets = (counters.rx_packets or 0) + (counters.tx_packets or 0)
    mac = inventory.machine.system == "macos"
    if bad:
        told = ", ".join(f"{value} {name}" for name, value in bad.items())
        what = f"The link has had errors since it came up: {told}."
        why = "A lost packet makes TCP wait 200 ms or more; one per second at 160 messages per token is felt at once."
        cure = by_hand(
            "Run `ferrule doctor` again after some traffic: if the numbers grow, change the cable first, then the "
            "socket, then the adapter."
        )
        evidence = inventory.evidence(f"$ {COUNTERS}") if mac else _statistics(inventory, one, bad)
        yield Finding("interface-errors", "warning", one.name, what, evidence, why, cure)
    elif packets and sum(dropped.values()) > _DROPS * packets:
        told = ", ".join(f"{value} {name}" for name, value in dropped.items())
        what = f"Of {packets} packets many were dropped: {told}."
        why = "Dropped packets are sent again, after a wait. The cable is not at fault: this machine did not keep up."
        cure = run(
            "Give the adapter longer queues (as far as `ethtool -g` tells).", f"sudo ethtool -G {one.name} rx 4096"
        )
        yield Finding("interface-drops", "note", one.name, what, _statistics(inventory, one, dropped), why, cure)


def _statistics(inventory: Inventory, one: NetDevice, names: dict[str, int]) -> tuple[tuple[str, str], ...]:
    return inventory.evidence(*(f"{one.path}/statistics/{name}" for name in names))


def _same_subnet(inventory: Inventory) -> Iterator[Finding]:
    wanted = [one for one in inventory.netdevs if one.kind in (*CABLES, "wifi") and usable(one) and one.master is None]
    for one, other in itertools.combinations(wanted, 2):
        shared = [
            net
            for net in subnets(one)
            for far in subnets(other)
            if net.version == far.version == 4 and net.overlaps(far)
        ]
        if not shared:
            continue
        wifi = next((each for each in (one, other) if each.kind == "wifi"), None)
        cable = one if wifi is other else other
        evidence = addresses_evidence(inventory, one.name, other.name)
        what = f"{one.name} and {other.name} are both in {shared[0]}."
        why = "The system answers for either address on either interface, so packets meant for one may take the other."
        if wifi is not None:
            why += " " + costs.limit(costs.WIFI, costs.WIFI_GB_S).replace("over it", "over Wi-Fi")
            cure = _wifi_off(inventory, wifi.name, f"Switch Wi-Fi off while the cable {cable.name} is in.")
        else:
            cure = by_hand(f"Give {other.name} an address in a subnet of its own, at both ends of its cable.")
        yield Finding("same-subnet", "warning", f"{one.name}, {other.name}", what, evidence, why, cure)


def _wifi_off(inventory: Inventory, name: str, text: str) -> tuple[Cure, ...]:
    if inventory.machine.system == "macos":
        return (Cure("macos", text, (f"networksetup -setairportpower {name} off",)),)
    command = (
        "nmcli radio wifi off" if manager_of(inventory, name) == "NetworkManager" else f"sudo ip link set {name} down"
    )
    return run(text, command)


def _default_route(inventory: Inventory) -> Iterator[Finding]:
    routes = default_routes(inventory)
    used = inventory.netdev(routes[0].netdev) if routes else None
    wired = [
        one for one in inventory.netdevs if one.kind == "ethernet" and one.carrier and usable(one) and subnets(one)
    ]
    if used is None or used.kind != "wifi" or not wired:
        return
    wired.sort(key=lambda one: not set(subnets(one)) & set(subnets(used)))  # a way to the same network first
    what = f"The default route goes over Wi-Fi ({used.name}) although {wired[0].name} is up."
    why = "Hosts find each other by this route unless told otherwise. " + costs.limit(costs.WIFI, costs.WIFI_GB_S)
    cure = _wifi_off(inventory, used.name, "Switch Wi-Fi off, or give the cable the smaller metric.")
    where = f"$ {MAC_ROUTES}" if inventory.machine.system == "macos" else f"$ {ROUTES[0]}"
    line = f"default via {routes[0].gateway or '?'} dev {used.name} metric {routes[0].metric or 0}"
    yield Finding("wifi-default-route", "warning", used.name, what, ((where, line),), why, cure)

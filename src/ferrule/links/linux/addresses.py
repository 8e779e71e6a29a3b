"""IP addresses and routes: from iproute2's JSON, or from ``/proc/net`` where there is no iproute2."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ferrule.links.reader import Reader, count, string, table, tables, whole
from ferrule.links.types.net import NetAddress, Route

ADDRESS = "ip -json -details address"
ROUTES = ("ip -json route", "ip -json -6 route")

_SCOPES = {0x00: "global", 0x10: "host", 0x20: "link", 0x40: "site"}
_UP = 1
_REJECT = 0x200


@dataclass(frozen=True)
class Addressing:
    """``addresses``: of each interface; ``parents``: on which interface another one stands."""

    addresses: dict[str, list[NetAddress]] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()

    def of(self, name: str) -> tuple[NetAddress, ...]:
        return tuple(self.addresses.get(name, ()))


def read_addressing(reader: Reader) -> Addressing:
    # An `ip` that is not iproute2's fails, as it has no JSON.
    listed = reader.json(ADDRESS, quiet=True)
    if listed is None:
        return _from_proc(reader)
    found = Addressing(routes=tuple(route for command in ROUTES for route in _routes(reader.json(command))))
    for entry in tables(listed):
        name = string(entry.get("ifname"))
        if name is None:
            continue
        addresses = (_address(reader, info) for info in tables(entry.get("addr_info")))
        found.addresses[name] = [one for one in addresses if one is not None]
        parent = string(entry.get("link"))
        kind = string(table(entry.get("linkinfo")).get("info_kind"))
        if parent is not None and kind != "veth":  # a veth's "link" is its other end
            found.parents[name] = parent
    return found


def _address(reader: Reader, info: dict[str, Any]) -> NetAddress | None:
    text, prefix = string(info.get("local")), count(info.get("prefixlen"), 128)
    if text is None or prefix is None:
        return None
    return checked(reader, f"$ {ADDRESS}", text, prefix, string(info.get("scope")))


def checked(reader: Reader, where: str, text: str, prefix: int, scope: str | None) -> NetAddress | None:
    """The address if it is one; a problem otherwise."""
    try:
        interface = ipaddress.ip_interface(f"{text.partition('%')[0]}/{prefix}")
    except ValueError:
        reader.problem(where, f"{text}/{prefix} is no address")
        return None
    return NetAddress(str(interface.ip), prefix, scope)


def _routes(listed: Any) -> Iterator[Route]:
    for entry in tables(listed):
        destination = string(entry.get("dst"))
        if destination is None or string(entry.get("type")) in ("unreachable", "blackhole", "prohibit", "throw"):
            continue
        # A route over several interfaces lists them apart.
        for hop in tables(entry.get("nexthops")) or [entry]:
            yield Route(
                destination=destination,
                netdev=string(hop.get("dev")),
                gateway=string(hop.get("gateway")) or string(table(hop.get("via")).get("host")),
                source=string(entry.get("prefsrc")),
                metric=count(entry.get("metric")),
            )


def _from_proc(reader: Reader) -> Addressing:
    routes = tuple(_proc_routes(reader.block("/proc/net/route")))
    found = Addressing(routes=routes)
    for line in (reader.block("/proc/net/if_inet6") or "").splitlines():
        parts = line.split()
        if len(parts) == 6 and len(parts[0]) == 32:
            prefix, scope = whole(f"0x{parts[2]}"), whole(f"0x{parts[3]}")
            text = ":".join(parts[0][at : at + 4] for at in range(0, 32, 4))
            one = checked(reader, "/proc/net/if_inet6", text, prefix or 0, _SCOPES.get(scope or 0))
            if one is not None:
                found.addresses.setdefault(parts[5], []).append(one)
    nets = [(ipaddress.ip_network(route.destination), route.netdev) for route in routes if _is_subnet(route)]
    for text in _local_addresses((reader.block("/proc/net/fib_trie") or "").splitlines()):
        ip = ipaddress.ip_address(text)
        home = max((net for net in nets if ip in net[0]), key=lambda net: net[0].prefixlen, default=None)
        if ip.is_loopback:
            found.addresses.setdefault("lo", []).append(NetAddress(text, 8, "host"))
        elif home is not None and home[1] is not None:
            found.addresses.setdefault(home[1], []).append(NetAddress(text, home[0].prefixlen, "global"))
    return found


def _is_subnet(route: Route) -> bool:
    return route.gateway is None and route.destination != "default"


def _proc_routes(text: str | None) -> Iterator[Route]:
    """``/proc/net/route``: addresses are hexadecimal, in the byte order of the machine (little endian)."""
    for line in (text or "").splitlines()[1:]:
        parts = line.split()
        if len(parts) < 8:
            continue
        destination, gateway, mask = (_swapped(parts[at]) for at in (1, 2, 7))
        flags, metric = whole(f"0x{parts[3]}"), whole(parts[6])
        if destination is None or gateway is None or mask is None or not (flags or 0) & _UP or (flags or 0) & _REJECT:
            continue
        prefix = int(mask).bit_count()
        network = ipaddress.IPv4Network((int(destination) & int(mask), prefix), strict=False)
        yield Route(
            destination=str(network) if prefix else "default",
            netdev=parts[0],
            gateway=str(gateway) if int(gateway) else None,
            metric=metric,
        )


def _swapped(text: str) -> ipaddress.IPv4Address | None:
    value = whole(f"0x{text}")
    if value is None or len(text) != 8:
        return None
    return ipaddress.IPv4Address(int.from_bytes(value.to_bytes(4, "big"), "little"))


def _local_addresses(lines: Iterable[str]) -> list[str]:
    """Those of ``/proc/net/fib_trie`` that are this machine's own: a leaf, then a line ``/32 host LOCAL``."""
    found: dict[str, None] = {}
    leaf = ""
    for line in lines:
        entry = line.strip()
        if entry.startswith("|--"):
            leaf = entry.removeprefix("|--").strip()
        elif entry == "/32 host LOCAL":
            try:
                found[str(ipaddress.IPv4Address(leaf))] = None
            except ValueError:
                continue
    return list(found)

"""Thunderbolt and USB4, from ``system_profiler``. Each bus has one socket, its receptacle.

What hangs on a bus is in ``_items``: another computer has a domain of its own (``domain_uuid_key``), which is how both
ends know the same cable; a dock or a disk has a ``switch_uid_key``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ferrule.links.reader import Reader, identity, natural, string, table, tables, whole
from ferrule.links.types.thunderbolt import (
    ThunderboltDomain,
    ThunderboltPeer,
    ThunderboltPort,
    ThunderboltRouter,
    ThunderboltService,
)

PROFILER = "system_profiler -json SPThunderboltDataType"

_KNOWN_SERVICES = {"service_ip": "network"}
_RDMA_PROTOCOL = 0xFA57
_MAX_DEPTH = 8


def read_thunderbolt(reader: Reader, ports: dict[str, str]) -> tuple[ThunderboltDomain, ...]:
    """``ports``: the network interface of each hardware port, such as ``Thunderbolt 1`` to ``en2``."""
    listed = table(reader.json(PROFILER, needed=True)).get("SPThunderboltDataType")
    buses = [bus for bus in tables(listed) if string(bus.get("_name"))]
    return tuple(
        sorted((_domain(reader, bus, ports) for bus in buses), key=lambda one: natural(one.ports[0].receptacle or ""))
    )


def _domain(reader: Reader, bus: dict[str, Any], ports: dict[str, str]) -> ThunderboltDomain:
    name = string(bus.get("_name")) or ""
    port = _port(reader, name, table(bus.get("receptacle_1_tag")), ports)
    return ThunderboltDomain(
        name=name,
        path=port.path,
        host=ThunderboltRouter(
            name=name,
            path=port.path,
            route=0,
            identity=identity(string(bus.get("domain_uuid_key"))),
            vendor=string(bus.get("vendor_name_key")),
            device=string(bus.get("device_name_key")),
        ),
        ports=(port,),
        devices=tuple(_router(port, item) for item in _walk(bus, 0) if _is_router(item)),
        peers=tuple(
            _peer(port, item, direct=item in tables(bus.get("_items")))
            for item in _walk(bus, 0)
            if string(item.get("domain_uuid_key"))
        ),
    )


def _walk(item: dict[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    """All that hangs on it, also behind docks."""
    if depth < _MAX_DEPTH:
        for one in tables(item.get("_items")):
            yield one
            yield from _walk(one, depth + 1)


def _is_router(item: dict[str, Any]) -> bool:
    return not string(item.get("domain_uuid_key")) and string(item.get("_name")) is not None


def _port(reader: Reader, bus: str, tag: dict[str, Any], ports: dict[str, str]) -> ThunderboltPort:
    receptacle, status = string(tag.get("receptacle_id_key")), string(tag.get("receptacle_status_key"))
    speed = string(tag.get("current_speed_key"))
    where = reader.note(
        f"$ {PROFILER}: {bus}",
        f"receptacle {receptacle or '?'}: {status or '?'}, {speed or 'no speed'}",
    )
    label = f"Thunderbolt {receptacle}" if receptacle else bus
    return ThunderboltPort(
        name=label,
        path=where,
        connected=None if status is None else status == "receptacle_connected",
        receptacle=receptacle,
        speed_gb_s=_speed(reader, where, speed),
        netdev=ports.get(label),
    )


def _speed(reader: Reader, where: str, text: str | None) -> float | None:
    """``80 Gb/s`` of a link, ``Up to 120 Gb/s`` of an empty socket."""
    if text is None:
        return None
    match = re.fullmatch(r"(?:Up to )?([0-9]{1,4}(?:\.[0-9])?) Gb/s(?: [x×][0-9])?", text)
    if match is None:
        reader.problem(where, f"{text!r} is no speed")
        return None
    return float(match[1])


def _router(port: ThunderboltPort, item: dict[str, Any]) -> ThunderboltRouter:
    route = string(item.get("route_string_key")) or ""
    return ThunderboltRouter(
        name=string(item.get("_name")) or "",
        path=port.path,
        route=whole(f"0x{route}") or 0,
        identity=identity(string(item.get("switch_uid_key"))),
        vendor=string(item.get("vendor_name_key")),
        device=string(item.get("device_name_key")),
        firmware=string(item.get("switch_version_key")),
    )


def _peer(port: ThunderboltPort, item: dict[str, Any], *, direct: bool) -> ThunderboltPeer:
    """``direct``: at the other end of the cable, not behind a dock."""
    services = tuple(_service(port, one) for one in tables(item.get("services_title")))
    return ThunderboltPeer(
        name=string(item.get("_name")) or "?",
        path=port.path,
        route=1 if direct else 0,
        identity=identity(string(item.get("domain_uuid_key"))),
        vendor=string(item.get("vendor_name_key")),
        device=string(item.get("device_name_key")),
        link_gb_s=port.speed_gb_s if direct else None,
        port=port.name if direct else None,
        services=services,
        netdevs=(port.netdev,) if port.netdev and direct else (),
    )


def _service(port: ThunderboltPort, item: dict[str, Any]) -> ThunderboltService:
    name = string(item.get("_name")) or "?"
    rdma = item.get("protocol_id_key") == _RDMA_PROTOCOL
    return ThunderboltService(name, port.path, "rdma" if rdma else _KNOWN_SERVICES.get(name))

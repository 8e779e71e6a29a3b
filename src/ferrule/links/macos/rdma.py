"""RDMA over Thunderbolt, from Apple's ``ibv_devices`` and ``ibv_devinfo``. ``rdma_en2`` belongs to ``en2``."""

from __future__ import annotations

import ipaddress
import re

from ferrule.links.devinfo import DEVINFO, blocks, leading
from ferrule.links.reader import Reader
from ferrule.links.types.rdma import Gid, RdmaDevice, RdmaPort

DEVICES = "ibv_devices"
COMMANDS = (DEVICES, DEVINFO)


def read_rdma(reader: Reader) -> tuple[RdmaDevice, ...]:
    listed = re.findall(r"^\s*(\w{1,32})\s+[0-9a-f]{16}\s*$", reader.output(DEVICES) or "", re.MULTILINE)
    told = {name: (fields, ports) for name, fields, ports in blocks(reader.output(DEVINFO, quiet=True))}
    return tuple(_device(reader, name, *told.get(name, ({}, []))) for name in dict.fromkeys([*listed, *told]))


def _device(reader: Reader, name: str, fields: dict[str, str], ports: list[dict[str, str]]) -> RdmaDevice:
    netdev = name.removeprefix("rdma_") if name.startswith("rdma_") else None
    found = []
    for port in ports:
        where = reader.note(f"$ {DEVINFO}: {name}", f"state: {port.get('state', '?')}")
        found.append(_port(reader, where, port, netdev))
    return RdmaDevice(
        name=name,
        path=f"$ {DEVINFO}: {name}",
        node_type=fields.get("transport"),
        firmware=fields.get("fw_ver"),
        board=fields.get("board_id"),
        driver="AppleThunderboltRDMA" if netdev else None,
        ports=tuple(found),
    )


def _port(reader: Reader, where: str, port: dict[str, str], netdev: str | None) -> RdmaPort:
    state = re.match("PORT_([A-Z_]{1,16})", port.get("state", ""))
    if state is None:
        reader.problem(where, "has no state")
    return RdmaPort(
        number=leading(port.get("port")) or 0,
        path=where,
        state=state[1] if state else None,
        phys_state=port.get("phys_state"),
        link_layer=port.get("link_layer"),
        lid=leading(port.get("port_lid")),
        sm_lid=leading(port.get("sm_lid")),
        gids=tuple(_gids(port, netdev)),
        netdevs=(netdev,) if netdev else (),
        active_mtu=leading(port.get("active_mtu")),
        max_mtu=leading(port.get("max_mtu")),
    )


def _gids(port: dict[str, str], netdev: str | None) -> list[Gid]:
    found = []
    for key, value in port.items():
        if key.startswith("GID"):
            text = value.partition(",")[0].strip()
            try:
                address = ipaddress.IPv6Address(text)
            except ValueError:
                continue
            if int(address):
                found.append(Gid(int(key[3:]), text, None, netdev, str(address.ipv4_mapped or address)))
    return found

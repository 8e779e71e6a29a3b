"""The program that manages an interface: NetworkManager, netplan, systemd-networkd or ifupdown.

Two of these programs write what they do for each interface into files that every user may read: below
``/run/NetworkManager/devices`` and ``/run/systemd/netif/links``, by the interface's number.
"""

from __future__ import annotations

import re

from ferrule.links.linux.net import CLASS
from ferrule.links.reader import Reader
from ferrule.links.types.machine import Service
from ferrule.links.types.net import NetManager

NM_DEVICES = "/run/NetworkManager/devices"
NETWORKD_LINKS = "/run/systemd/netif/links"
NETPLAN = "/etc/netplan"
INTERFACES = "/etc/network/interfaces"
IFSTATE = "/run/network/ifstate"

_SOURCED = re.compile(r"^\s*source(?:-directory)?\s+(?:/etc/network/)?interfaces\.d(?:/\*)?\s*$", re.MULTILINE)


def read_manager(reader: Reader, name: str, services: tuple[Service, ...]) -> NetManager | None:
    """None where no program was found that would keep a setting of this interface."""
    active = {one.name for one in services if one.active}
    number = reader.number(f"{CLASS}/{name}/ifindex", 1, 1 << 31)
    if "NetworkManager" in active:
        told = reader.block(f"{NM_DEVICES}/{number}") or "" if number else ""
        if re.search(r"^managed=(?:false|0)\s*$", told, re.MULTILINE) is None:
            return NetManager("NetworkManager")
    if "systemd-networkd" in active:
        told = reader.block(f"{NETWORKD_LINKS}/{number}") or "" if number else ""
        file = re.search(r"^NETWORK_FILE=(/\S{1,255})\s*$", told, re.MULTILINE)
        plans = any(one.endswith(".yaml") for one in reader.names(NETPLAN))
        return NetManager("netplan" if plans else "systemd-networkd", file[1] if file else None)
    if "networking" in active or reader.exists(IFSTATE):
        return NetManager("ifupdown") if _SOURCED.search(reader.block(INTERFACES) or "") else None
    return None

"""Who gives an interface its settings at every start: NetworkManager, netplan, systemd-networkd or ifupdown.

The first two programs write down what they do for each interface where anybody may read it: below
``/run/NetworkManager/devices`` and ``/run/systemd/netif/links``, by the interface's number.
"""

from __future__ import annotations

import re

from ferrule.links.linux.net import CLASS
from ferrule.links.reader import Reader
from ferrule.links.types import Keeper, Service

NM_DEVICES = "/run/NetworkManager/devices"
NETWORKD_LINKS = "/run/systemd/netif/links"
NETPLAN = "/etc/netplan"
INTERFACES = "/etc/network/interfaces"
IFSTATE = "/run/network/ifstate"

_SOURCED = re.compile(r"^\s*source(?:-directory)?\s+(?:/etc/network/)?interfaces\.d(?:/\*)?\s*$", re.MULTILINE)


def read_keeper(reader: Reader, name: str, services: tuple[Service, ...]) -> Keeper | None:
    """None where no program was found that would keep a setting of this interface."""
    active = {one.name for one in services if one.active}
    number = reader.number(f"{CLASS}/{name}/ifindex", 1, 1 << 31)
    if "NetworkManager" in active:
        told = reader.block(f"{NM_DEVICES}/{number}") or "" if number else ""
        if re.search(r"^managed=(?:false|0)\s*$", told, re.MULTILINE) is None:
            return Keeper("NetworkManager")
    if "systemd-networkd" in active:
        told = reader.block(f"{NETWORKD_LINKS}/{number}") or "" if number else ""
        file = re.search(r"^NETWORK_FILE=(/\S{1,255})\s*$", told, re.MULTILINE)
        plans = any(one.endswith(".yaml") for one in reader.names(NETPLAN))
        return Keeper("netplan" if plans else "systemd-networkd", file[1] if file else None)
    if "networking" in active or reader.exists(IFSTATE):
        return Keeper("ifupdown") if _SOURCED.search(reader.block(INTERFACES) or "") else None
    return None

"""Whether an interface pauses senders before it loses packets: pause frames (802.3x) and PFC (802.1Qbb).

Sysfs has neither. The kernel tells pause frames to every user (``ETHTOOL_GPAUSEPARAM``), and PFC over netlink
(``DCB_CMD_IEEE_GET``), which iproute2's ``dcb`` asks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from ferrule.links.own import PAUSE
from ferrule.links.reader import Reader
from ferrule.links.types.net import FlowControl, NetDevice

PFC = "dcb pfc show dev"
"""Followed by the name of an interface."""

_STATE = {"on": True, "off": False}


def read_flow_control(reader: Reader, netdevs: tuple[NetDevice, ...], names: Collection[str]) -> tuple[NetDevice, ...]:
    """``netdevs``, with what those in ``names`` tell; a driver that tells nothing is no problem."""
    reader.prefetch(f"{PFC} {name}" for name in names)
    return tuple(
        dataclasses.replace(one, flow_control=_flow_control(reader, one.name)) if one.name in names else one
        for one in netdevs
    )


def _flow_control(reader: Reader, name: str) -> FlowControl:
    paused = reader.output(f"{PAUSE} {name}", quiet=True) or ""
    prioritized = reader.output(f"{PFC} {name}", quiet=True) or ""
    line = re.search(r"^prio-pfc((?: [0-9]:(?:on|off)){1,8})\s*$", prioritized, re.MULTILINE)
    return FlowControl(
        receives=_told(paused, "RX"),
        sends=_told(paused, "TX"),
        priorities=None if line is None else tuple(map(int, re.findall(r"([0-9]):on", line[1]))),
    )


def _told(paused: str, which: str) -> bool | None:
    match = re.search(rf"^{which}:\s+(on|off)\s*$", paused, re.MULTILINE)
    return None if match is None else _STATE[match[1]]

"""The status of a lab of virtual machines."""

from __future__ import annotations

import msgspec

from ferrule.lab.usb4.messages import CableState


class GuestStatus(msgspec.Struct, frozen=True):
    """``pid``: QEMU's."""

    name: str
    pid: int


class WiredState(CableState, frozen=True):
    """``made_for``: lanes and their speed; ``ends``: the address of each host's interface."""

    name: str
    made_for: str
    ends: dict[str, str]


class VmStatus(msgspec.Struct, frozen=True):
    """``profile``: its name, or its file; ``since``: seconds since 1970."""

    name: str
    profile: str
    title: str
    pid: int
    since: float
    guests: tuple[GuestStatus, ...]
    cables: tuple[WiredState, ...]

"""Report of a device check: what was tried, whether it was right, and how fast it was. A file that can be sent."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ferrule.files import FileRecord

VERSION = 1
Text = Annotated[str, Meta(max_length=4096)]


class Check(Struct, frozen=True):
    """``ok``: the device gave what the processor gives. ``detail``: what was compared, or what went wrong. ``numbers``:
    measured on the way, by a name that ends in their unit. ``kernel``: by what ranks multiply, where it is chosen."""

    name: Text
    ok: bool
    detail: Text
    numbers: dict[Text, float] = {}
    kernel: Text = ""


class DeviceReport(FileRecord, frozen=True, tag="device-check"):
    """``device``: its name for ``--device``; ``title``: what it calls itself; ``memory_bytes``: free before."""

    version: int
    ferrule: Text
    torch: Text
    system: Text
    device: Text
    title: Text
    memory_bytes: int
    seconds: float
    checks: Annotated[tuple[Check, ...], Meta(max_length=100)]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

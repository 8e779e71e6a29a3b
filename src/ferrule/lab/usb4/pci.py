"""The PCI configuration space of an emulated controller. Pure."""

from __future__ import annotations

import struct

SIZE = 256
VECTORS = 16
REGISTERS_BAR, MSIX_BAR, MSIX_BYTES = 0, 2, 0x1000

_CLASS_USB4 = (0x40, 0x03, 0x0C)  # programming interface, subclass, class: a USB4 host interface
_MSIX, _MSIX_AT, _TABLE, _PENDING = 0x11, 0x50, 0, 0x800


def config_space(ids: tuple[int, int]) -> bytearray:
    """What it reads after a reset. ``ids``: vendor and device."""
    space = bytearray(SIZE)
    revision, has_capabilities = 1, 0x10
    struct.pack_into("<HHHHBBBB", space, 0, *ids, 0, has_capabilities, revision, *_CLASS_USB4)
    struct.pack_into("<HH", space, 0x2C, *ids)
    space[0x34] = _MSIX_AT
    table, pending = _TABLE | MSIX_BAR, _PENDING | MSIX_BAR
    struct.pack_into("<BBHII", space, _MSIX_AT, _MSIX, 0, VECTORS - 1, table, pending)
    return space

"""The PCI configuration space of an emulated controller. Pure."""

from __future__ import annotations

import struct

SIZE = 256
VECTORS = 16
REGISTERS_BAR, MSIX_BAR, MSIX_BYTES = 0, 2, 0x1000

_CLASS_USB4 = (0x40, 0x03, 0x0C)  # programming interface, subclass, class: a USB4 host interface
_POWER, _POWER_AT = 0x01, 0x40
_MSIX, _MSIX_AT, _TABLE, _PENDING = 0x11, 0x50, 0, 0x800
_POWER_VERSION, _WAKES_FROM_D3HOT = 3, 1 << 14
_CONTROL_AT = _POWER_AT + 4
_STATE, _KEEPS_STATE, _WAKE_ENABLE, _WAKE_STATUS = 3, 1 << 3, 1 << 8, 1 << 15
_D3HOT = 3


def config_space(ids: tuple[int, int]) -> bytearray:
    """Configuration space after a reset. ``ids``: vendor and device."""
    space = bytearray(SIZE)
    revision, has_capabilities = 1, 0x10
    struct.pack_into("<HHHHBBBB", space, 0, *ids, 0, has_capabilities, revision, *_CLASS_USB4)
    struct.pack_into("<HH", space, 0x2C, *ids)
    space[0x34] = _POWER_AT
    struct.pack_into("<BBHH", space, _POWER_AT, _POWER, _MSIX_AT, _POWER_VERSION | _WAKES_FROM_D3HOT, _KEEPS_STATE)
    table, pending = _TABLE | MSIX_BAR, _PENDING | MSIX_BAR
    struct.pack_into("<BBHII", space, _MSIX_AT, _MSIX, 0, VECTORS - 1, table, pending)
    return space


def write(space: bytearray, offset: int, data: bytes) -> None:
    """Write of software. Of the word for power it sets the state and what wakes, and clears what did."""
    before = _control(space)
    space[offset : offset + len(data)] = data
    status = before & _WAKE_STATUS
    if offset <= _CONTROL_AT + 1 < offset + len(data):
        status &= ~_control(space)
    _set_control(space, _control(space) & (_STATE | _WAKE_ENABLE) | _KEEPS_STATE | status)


def asleep(space: bytearray) -> bool:
    return _control(space) & _STATE == _D3HOT


def wake(space: bytearray) -> None:
    """Signal an event (PME) if the driver asked for it; kernels poll that each second."""
    if asleep(space) and _control(space) & _WAKE_ENABLE:
        _set_control(space, _control(space) | _WAKE_STATUS)


def _control(space: bytearray) -> int:
    return int.from_bytes(space[_CONTROL_AT : _CONTROL_AT + 2], "little")


def _set_control(space: bytearray, value: int) -> None:
    struct.pack_into("<H", space, _CONTROL_AT, value)

"""What an ELF file asks of its loader: the shared libraries it needs and where it looks for them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 1, 5, 15, 29
_LITTLE_64 = b"\x7fELF\x02\x01"


@dataclass(frozen=True)
class Elf:
    """``needed``: names of libraries; ``search``: its own directories for them, with ``$ORIGIN`` not yet replaced;
    ``interpreter``: the loader's path, empty for a library or a static program."""

    needed: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    interpreter: str = ""


def read_elf(path: Path) -> Elf | None:
    """The dynamic section of ``path``, or None if it is not a little-endian 64-bit ELF file."""
    with path.open("rb") as file:
        if file.read(len(_LITTLE_64)) != _LITTLE_64:
            return None
        file.seek(0)
        return parse_elf(file.read())


def parse_elf(data: bytes) -> Elf | None:
    """As `read_elf`, from the file's bytes. A damaged file gives None."""
    if not data.startswith(_LITTLE_64):
        return None
    try:
        return _parse(data)
    except (struct.error, ValueError):
        return None


def _parse(data: bytes) -> Elf:
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads: list[tuple[int, int, int]] = []  # address, offset, size in the file
    dynamic, interpreter = (0, 0), ""
    for index in range(count):
        kind, _, offset, address, _, in_file = struct.unpack_from("<IIQQQQ", data, table + index * size)
        if kind == _PT_LOAD:
            loads.append((address, offset, in_file))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, in_file)
        elif kind == _PT_INTERP:
            interpreter = _string(data, offset)
    needed: list[int] = []
    search: list[int] = []
    strings = 0
    for position in range(dynamic[0], dynamic[0] + dynamic[1], 16):
        tag, value = struct.unpack_from("<QQ", data, position)
        if tag == 0:
            break
        if tag == _DT_NEEDED:
            needed.append(value)
        elif tag in (_DT_RPATH, _DT_RUNPATH):
            search.append(value)
        elif tag == _DT_STRTAB:
            strings = next((value - start + offset for start, offset, n in loads if start <= value < start + n), 0)
    directories = [part for value in search for part in _string(data, strings + value).split(":") if part]
    return Elf(tuple(_string(data, strings + value) for value in needed), tuple(directories), interpreter)


def _string(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()

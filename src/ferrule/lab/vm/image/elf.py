"""The dynamic section of an ELF file: the shared libraries it needs, and where it looks for them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import InterpSegment

_TEXTS = {"DT_NEEDED": "needed", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
"""Entries of the dynamic section, and the attributes in which pyelftools has their text."""

_LITTLE_64 = b"\x7fELF\x02\x01"


@dataclass(frozen=True)
class Elf:
    """``needed``: names of libraries; ``search``: its own directories for them, with ``$ORIGIN`` not yet replaced;
    ``interpreter``: the loader's path, empty for a library or a static program."""

    needed: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    interpreter: str = ""


@cache
def read_elf(path: Path) -> Elf | None:
    """The dynamic section of ``path``, or None if it is not a little-endian 64-bit ELF file."""
    with path.open("rb") as file:
        begin = file.read(len(_LITTLE_64))
        return parse_elf(begin + file.read()) if begin == _LITTLE_64 else None


def parse_elf(data: bytes) -> Elf | None:
    """As `read_elf`, from the file's bytes. A damaged file gives None."""
    if not data.startswith(_LITTLE_64):
        return None
    needed: list[str] = []
    search: list[str] = []
    interpreter = ""
    try:
        for segment in ELFFile(io.BytesIO(data)).iter_segments():
            if isinstance(segment, InterpSegment):
                interpreter = segment.get_interp_name()
            elif isinstance(segment, DynamicSegment):
                for tag in segment.iter_tags():
                    name = _TEXTS.get(tag.entry.d_tag)
                    if name == "needed":
                        needed.append(getattr(tag, name))
                    elif name is not None:
                        search += filter(None, getattr(tag, name).split(":"))
    except (ELFError, ConstructError, ValueError):
        return None
    return Elf(tuple(needed), tuple(search), interpreter)

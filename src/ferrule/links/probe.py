"""Find out what a machine has: this one, or one that was recorded."""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ferrule import __version__
from ferrule.links.linux import read_linux
from ferrule.links.macos import read_macos
from ferrule.links.reader import Reader
from ferrule.links.record import Header, LinksRecord, open_record
from ferrule.links.recorder import Recorder
from ferrule.links.redact import Redactor
from ferrule.links.tree import LiveTree, Tree
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.machine import Machine, System

UNAME = "uname -s"
OSTYPE = "/proc/sys/kernel/ostype"
_SALT = b"ferrule links record"


@dataclass(frozen=True)
class Probe:
    """Reads ``tree``; see `Probe.live` and `Probe.recorded`."""

    tree: Tree

    @classmethod
    def live(cls) -> Self:
        """This machine. Nothing is changed on it, and no root is needed; as root it sees a little more."""
        return cls(LiveTree())

    @classmethod
    def recorded(cls, path: Path) -> Self:
        """A machine that ``ferrule links record`` saved. Raises `LinkError` if ``path`` is no such record."""
        return cls(open_record(path))

    def inventory(self, *, devices: bool = True) -> Inventory:
        """All that can be found out without sending anything. Never fails: see `Inventory.unreadable`.

        ``devices``: GPUs too, of which NVIDIA's tool may take seconds, and all its time where the driver hangs.
        """
        reader = Reader(self.tree)
        match _system(reader):
            case "linux":
                return read_linux(reader, self.tree.name, devices=devices)
            case "macos":
                return read_macos(reader, self.tree.name)
            case _:
                reader.problem(f"$ {UNAME}", "this is neither Linux nor macOS")
                return Inventory(Machine(self.tree.name), unreadable=tuple(reader.unreadable), seen=reader.seen)

    def record(self, *, together: str = "", plain: bool = False) -> LinksRecord:
        """Record of the files and outputs of the inventory, with names and addresses redacted; for `write_record`.

        ``together``: with the same words, several machines' records have the same pseudonyms for the same things, so
        that cables between them can be told. A reader who knows the words can test guesses of what was redacted.
        ``plain``: nothing is redacted.
        """
        key = None
        if together:
            key = hashlib.scrypt(together.encode(), salt=_SALT, n=1 << 14, r=8, p=1, dklen=32)
        recorder = Recorder(self.tree)
        Probe(recorder).inventory()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        found = recorder.record(Header(f"ferrule {__version__}", today))
        return found if plain else Redactor(key).record(found)


def _system(reader: Reader) -> System:
    """Linux has a proc file for it; what has neither that nor `uname`, but a ``/sys``, is Linux too."""
    kernel = (reader.text(OSTYPE) or reader.output(UNAME, quiet=True) or "").strip()
    if kernel == "Linux" or (kernel != "Darwin" and reader.exists("/sys/class/net")):
        return "linux"
    return "macos" if kernel == "Darwin" else "unknown"

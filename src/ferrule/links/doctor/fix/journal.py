"""Journal of fixes: a file for each, on disk before it is done, so that it can be undone later and after a crash."""

from __future__ import annotations

import datetime
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ferrule.errors import LinkError
from ferrule.files import FileRecord
from ferrule.links.doctor.fix.actions import Fix
from ferrule.links.doctor.fix.machine import read_state, sync_folder, write_state

SCHEMA = 1
_MAX_BYTES = 1 << 20


class Entry(FileRecord, frozen=True, tag="doctor-fix"):
    """``begun``: how many steps were begun; all that they do was on disk before. ``uncertain``: whether the last of
    them may not have happened. ``complete``: whether all steps are done. ``schema``: of its file.
    """

    fix: Fix
    when: str
    number: int = 0
    schema: int = SCHEMA
    begun: int = 0
    uncertain: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Journal:
    folder: Path

    def entries(self) -> tuple[Entry, ...]:
        """Entries that were done and not undone, the oldest first. Raises `LinkError` if another user could have
        written it."""
        if not self.folder.exists():
            return ()
        self._check(self.folder)
        names = (re.fullmatch(r"([0-9]{1,9})\.json", path.name) for path in self.folder.iterdir())
        return tuple(
            self._read(int(match[1])) for match in sorted(filter(None, names), key=lambda found: int(found[1]))
        )

    def begin(self, fix: Fix) -> Entry:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LinkError(f"cannot make {self.folder} for the journal: {error.strerror}") from error
        number = max((one.number for one in self.entries()), default=0) + 1
        entry = Entry(fix, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), number)
        self.write(entry)
        return entry

    def write(self, entry: Entry) -> None:
        """Replaces what was there in one go; it is on the disk when this returns."""
        try:
            write_state(self._path(entry.number), entry, 0o600)
        except OSError as error:
            raise LinkError(
                f"cannot write the journal in {self.folder}: {error.strerror}; nothing more is done"
            ) from error

    def forget(self, entry: Entry) -> None:
        self._path(entry.number).unlink(missing_ok=True)
        sync_folder(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def _check(self, path: Path) -> None:
        """Check that only we may have written it, since what stands here is run as root."""
        found = path.lstat()
        if found.st_uid != os.geteuid() or stat.S_ISLNK(found.st_mode) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise LinkError(f"{path} can be written by others, so it is not trusted; look into it, then remove it")

    def _read(self, number: int) -> Entry:
        path = self._path(number)
        self._check(path)
        try:
            with path.open("rb") as file:
                entry = read_state(file.read(_MAX_BYTES), Entry, SCHEMA)
        except (OSError, ValueError, RecursionError) as error:
            raise LinkError(f"{path} is damaged ({error}); undo by hand what it names, then remove it") from error
        if entry is None:
            raise LinkError(f"{path} was written by another version of Ferrule; undo with that one")
        if not 0 <= entry.begun <= len(entry.fix.steps):
            raise LinkError(f"{path} is damaged; undo by hand what it names, then remove it")
        return replace(entry, number=number)


def advanced(entry: Entry, begun: int, *, uncertain: bool = False) -> Entry:
    return replace(entry, begun=begun, uncertain=uncertain, complete=False)

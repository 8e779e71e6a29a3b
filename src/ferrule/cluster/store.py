"""The records of a cluster on this host's disk: they survive the agent, the host and the power."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from ferrule.cluster.records import Knowledge, Record, record_from
from ferrule.errors import ClusterError

_LAYOUT = 1
_COLUMNS = ("kind", "name", "version", "writer", "value")
_MAKE = """
create table if not exists record (
    kind text, name text, version integer, writer text, value text, primary key (kind, name)
) without rowid
"""


class Store:
    """Records in SQLite. Raises `ClusterError` where the file cannot be used. Not thread-safe."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._database = sqlite3.connect(file, isolation_level=None, timeout=5.0)
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = full")  # a power cut must not undo what a user was told
            (layout,) = self._database.execute("pragma user_version").fetchone()
            if layout not in (0, _LAYOUT):
                raise ClusterError(f"{file} was made by another version of Ferrule (layout {layout}); update this one")
            self._database.execute(_MAKE)
            self._database.execute(f"pragma user_version = {_LAYOUT}")
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def load(self) -> Knowledge:
        try:
            rows = self._database.execute("select kind, name, version, writer, value from record").fetchall()
        except sqlite3.Error as error:
            raise self._broken(error) from error
        records = [self._record(dict(zip(_COLUMNS, row, strict=True))) for row in rows]
        return Knowledge({record.key: record for record in records})

    def _record(self, row: dict[str, object]) -> Record:
        try:
            value = row["value"]
            return record_from({**row, "value": json.loads(value) if isinstance(value, str) else value})
        except (ClusterError, ValueError) as error:
            raise ClusterError(f"{self._file} is damaged: {error}; leave the cluster and join it again") from None

    def keep(self, records: Iterable[Record]) -> None:
        """All of them, or none."""
        rows = [
            (*each.key, each.version, each.writer, each.value and msgspec.json.encode(each.value).decode())
            for each in records
        ]
        try:
            self._database.execute("begin immediate")
            self._database.executemany("insert or replace into record values (?, ?, ?, ?, ?)", rows)
            self._database.execute("commit")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):  # so that the next attempt can begin
                self._database.execute("rollback")
            raise self._broken(error) from error

    def close(self) -> None:
        self._database.close()

    def _broken(self, error: sqlite3.Error) -> ClusterError:
        if isinstance(error, sqlite3.OperationalError):  # of the system: a full disk, rights, a lock
            cure = "make room on the disk and see that the file is this user's"
        else:
            cure = "leave the cluster and join it again"
        return ClusterError(f"{self._file} cannot be used: {error}; {cure}")

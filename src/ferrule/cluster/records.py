"""What all hosts of a cluster know alike: who belongs to it, and which models should be up. Pure.

Each fact is a record with a version. Two hosts that meet give each other all they know; of two versions of one record
the higher number wins, and of equal ones the one of the greater writer, so that all end with the same, in whatever
order they meet. A record that was taken back stays as a stone, so that a host that was away does not bring it back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Self

from ferrule.errors import ClusterError

HOST, MODEL, RAY = "host", "model", "ray"
KINDS = (HOST, MODEL, RAY)
_MAX_NAME = 200
_MAX_VERSION = 1 << 62
"""What a database and every JSON reader can hold."""
_HOST_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Record:
    """``value``: what it says, a JSON object; None: it was taken back. ``writer``: the id of the host that wrote it."""

    kind: str
    name: str
    version: int
    writer: str
    value: Mapping[str, Any] | None

    def newer_than(self, other: Record | None) -> bool:
        return other is None or (self.version, self.writer) > (other.version, other.writer)

    def to_json(self) -> list[Any]:
        return [self.kind, self.name, self.version, self.writer, self.value]

    @classmethod
    def from_json(cls, fields: Any) -> Self:
        """Raises `ClusterError` for what `to_json` would not have made."""
        try:
            kind, name, version, writer, value = fields
        except (TypeError, ValueError):
            raise ClusterError("a record has other fields than it should") from None
        if (
            kind not in KINDS
            or not isinstance(name, str)
            or not 0 < len(name) <= _MAX_NAME
            or not name.isprintable()
            or not isinstance(version, int)
            or not isinstance(writer, str)
            or not _HOST_ID.fullmatch(writer)
            or not isinstance(value, dict | None)
            or not 0 <= version < _MAX_VERSION
        ):
            raise ClusterError(f"a record cannot be used: {str(fields)[:120]}")
        if kind == HOST and value is not None and Member.from_json(value).host != name:
            raise ClusterError(f"a record cannot be used: {str(fields)[:120]}")
        return cls(kind, name, version, writer, value)


@dataclass(frozen=True)
class Member:
    """A host as its own agent describes it. ``addresses``: where it may be reached, the best first. ``ray``: its
    version of Ray; empty where there is none."""

    host: str
    name: str
    port: int
    addresses: tuple[str, ...]
    ferrule: str
    python: str
    ray: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "addresses": list(self.addresses)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Raises `ClusterError`."""
        try:
            made = cls(**{**fields, "addresses": tuple(map(str, fields["addresses"]))})
        except (TypeError, KeyError) as error:
            raise ClusterError(f"a host describes itself in a way that cannot be read: {error}") from None
        if (
            not isinstance(made.port, int)
            or not 0 < made.port < 65536
            or not _HOST_ID.fullmatch(str(made.host))
            or not isinstance(made.name, str)
            or not isinstance(made.ray, str)
            or not all(map(_is_address, made.addresses))
        ):
            raise ClusterError(f"a host describes itself in a way that cannot be read: {str(fields)[:120]}")
        return made

    @classmethod
    def of_status(cls, fields: Mapping[str, Any]) -> Self:
        """From what an agent's ``status`` tells of a host."""
        return cls.from_json({name: fields[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Knowledge:
    """All records, by kind and name. `merged` and `written` make new ones."""

    records: Mapping[tuple[str, str], Record] = field(default_factory=dict)

    @property
    def digest(self) -> list[int]:
        """Two hosts with different records have different digests, but for one chance in 2**64."""
        mixed = 0
        for record in self.records.values():
            mixed ^= hash_of(record)
        return [len(self.records), mixed]

    def merged(self, others: Iterable[Record]) -> tuple[Knowledge, tuple[Record, ...]]:
        """With what is newer among ``others``, and what that was."""
        found = dict(self.records)
        news = []
        for record in others:
            if record.newer_than(found.get((record.kind, record.name))):
                found[record.kind, record.name] = record
                news.append(record)
        return (Knowledge(found), tuple(news)) if news else (self, ())

    def written(self, kind: str, name: str, value: Mapping[str, Any] | None, writer: str) -> tuple[Knowledge, Record]:
        """With a new version of one record. Raises `ClusterError` for one that no other host would take."""
        old = self.records.get((kind, name))
        record = Record.from_json([kind, name, 1 if old is None else old.version + 1, writer, value])
        return Knowledge({**self.records, (kind, name): record}), record

    def present(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """The records of a kind that were not taken back, by name."""
        found = sorted(self.records.items())
        return {name: record.value for (each, name), record in found if each == kind and record.value is not None}

    @property
    def members(self) -> dict[str, Member]:
        """By host id."""
        return {name: Member.from_json(value) for name, value in self.present(HOST).items()}

    def gone(self, host: str) -> bool:
        """Whether that host has left, or was told to."""
        record = self.records.get((HOST, host))
        return record is not None and record.value is None

    def introduced(self, member: Member) -> tuple[Knowledge, Record | None]:
        """With this host as it is now; the record is None where nothing is new."""
        old = self.records.get((HOST, member.host))
        if old is not None and old.value == member.to_json():
            return self, None
        return self.written(HOST, member.host, member.to_json(), member.host)

    def name_taken(self, member: Member) -> bool:
        """Whether another host has this one's name already."""
        return any(other.name == member.name and other.host != member.host for other in self.members.values())


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def hash_of(record: Record) -> int:
    """64 bits that are the same on every host, unlike Python's own."""
    words = f"{record.kind}\0{record.name}\0{record.version}\0{record.writer}"
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big")

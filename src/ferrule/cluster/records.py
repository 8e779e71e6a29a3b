"""The records that all hosts of a cluster know alike: its members, and what it should run. Pure.

Each fact is a record with a version. Two hosts that meet give each other all they know; of two versions of one record
the higher number wins, and of equal ones the one of the greater writer, so that all end with the same, in whatever
order they meet. A record that was taken back stays as a tombstone, so that a host that was away does not bring it back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ferrule.cluster.desired import DesiredModel, DesiredRay, HostId, Name, Port, Text
from ferrule.errors import ClusterError
from ferrule.secure import Address

Version = Annotated[int, Meta(ge=0, lt=1 << 62)]
"""Version number, in the range that a database and every JSON reader can hold."""


@dataclass(frozen=True)
class Member:
    """A host as its own agent describes it. ``addresses``: where it may be reached, the best first. ``ray``: its
    version of Ray; empty where there is none. ``install_engine``: the command without which it cannot run ranks; empty
    where it can, and of a version that does not tell. Raises `ValueError` for an address that is none."""

    host: HostId
    name: Name
    port: Port
    addresses: Annotated[tuple[Text, ...], Meta(max_length=256)]
    ferrule: Text
    python: Text
    ray: Text = ""
    install_engine: Text = ""

    def __post_init__(self) -> None:
        for address in self.addresses:
            ip_address(address)

    @property
    def places(self) -> tuple[Address, ...]:
        """Addresses at which its agent listens."""
        return tuple((address, self.port) for address in self.addresses)


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """``writer``: the id of the host that wrote it. ``value``: None where it was taken back."""

    name: Name
    version: Version
    writer: HostId

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ValueError(f"{self.name!r} cannot name a record")

    @property
    def key(self) -> tuple[str, str]:
        """Its kind and its name."""
        return str(self.__struct_config__.tag), self.name

    def newer_than(self, other: BaseRecord | None) -> bool:
        return other is None or (self.version, self.writer) > (other.version, other.writer)


class HostRecord(BaseRecord, frozen=True, kw_only=True, tag="host"):
    value: Member | None

    def __post_init__(self) -> None:
        if self.value is not None and self.value.host != self.name:
            raise ValueError(f"the record of the host {self.name} describes another one")


class ModelRecord(BaseRecord, frozen=True, kw_only=True, tag="model"):
    value: DesiredModel | None


class RayRecord(BaseRecord, frozen=True, kw_only=True, tag="ray"):
    """There is one, with the name `RAY`."""

    value: DesiredRay | None


RAY = "ray"
Record = HostRecord | ModelRecord | RayRecord
R = TypeVar("R", HostRecord, ModelRecord, RayRecord)


def record_from(fields: object) -> Record:
    """Of what a JSON reader made of a record. Raises `ClusterError` for what no host would have written."""
    try:
        made: Record = msgspec.convert(fields, Record)
    except msgspec.ValidationError as error:
        raise ClusterError(f"a record cannot be used: {error}: {str(fields)[:120]}") from None
    return made


@dataclass(frozen=True)
class Knowledge:
    """All records, by kind and name. `merged` and `written` make new ones."""

    records: Mapping[tuple[str, str], Record] = field(default_factory=dict)

    @property
    def digest(self) -> tuple[int, int]:
        """Two hosts with different records have different digests, but for one chance in 2**64."""
        mixed = 0
        for record in self.records.values():
            mixed ^= hash_of(record)
        return len(self.records), mixed

    def merged(self, others: Iterable[Record]) -> tuple[Knowledge, tuple[Record, ...]]:
        """With what is newer among ``others``, and what that was."""
        found = dict(self.records)
        news = []
        for record in others:
            if record.newer_than(found.get(record.key)):
                found[record.key] = record
                news.append(record)
        return (Knowledge(found), tuple(news)) if news else (self, ())

    def written(self, record: Record) -> tuple[Knowledge, Record]:
        """With a new version of one record. Raises `ClusterError` for one that no other host would take."""
        old = self.records.get(record.key)
        record = msgspec.structs.replace(record, version=1 if old is None else old.version + 1)
        record_from(msgspec.to_builtins(record))
        return Knowledge({**self.records, record.key: record}), record

    @property
    def members(self) -> dict[str, Member]:
        """By host id."""
        return {each.name: each.value for each in self._of(HostRecord) if each.value is not None}

    @property
    def models(self) -> dict[str, DesiredModel]:
        """Those that should be up, by name."""
        return {each.name: each.value for each in self._of(ModelRecord) if each.value is not None}

    @property
    def ray(self) -> DesiredRay | None:
        return next((each.value for each in self._of(RayRecord)), None)

    def _of(self, kind: type[R]) -> list[R]:
        return [record for _, record in sorted(self.records.items()) if isinstance(record, kind)]

    def gone(self, host: str) -> bool:
        """Whether that host has left, or was told to."""
        return any(each.value is None for each in self._of(HostRecord) if each.name == host)

    def introduced(self, member: Member) -> tuple[Knowledge, Record | None]:
        """With this host as it is now; the record is None where nothing is new."""
        if self.members.get(member.host) == member:
            return self, None
        return self.written(HostRecord(name=member.host, version=0, writer=member.host, value=member))

    def name_taken(self, member: Member) -> bool:
        """Whether another host has this one's name already."""
        return any(other.name == member.name and other.host != member.host for other in self.members.values())


def hash_of(record: Record) -> int:
    """64 bits that are the same on every host, unlike Python's own."""
    kind, name = record.key
    text = f"{kind}\0{name}\0{record.version}\0{record.writer}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

"""Cache of link costs measured at earlier starts: a file of the user's, by what identifies a link."""

from __future__ import annotations

import ipaddress
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.routing.paths import Rail
from ferrule.files import FileRecord, cache_directory, locked, read_record, write_record

_log = logging.getLogger(__name__)

MAX_AGE_SECONDS = 7 * 86400.0
_VERSION = 3
_MAX_LINKS = 300
_LOCK_SECONDS = 0.5

Ends = tuple[str, str]
"""Identity of a link: the end at the lower rank, and the one at the higher rank."""


class _File(FileRecord, frozen=True, tag="known-links"):
    version: int
    links: dict[str, Measured]


def link_ends(own: RankHost, other: RankHost, rail: Rail, *, higher: bool) -> Ends | None:
    """The ends of ``rail`` from ``own`` to ``other``; None where nothing tells that it is the same one tomorrow.

    ``higher``: whether ``own`` is the higher rank's host.
    """
    mine, theirs = _end(own, rail.interface, rail.address[0]), _end(other, rail.other_interface, rail.address[0])
    if mine is None or theirs is None:
        return None
    return (theirs, mine) if higher else (mine, theirs)


def _end(host: RankHost, interface: str, address: str) -> str | None:
    if not host.identity:
        return None
    if interface:
        identity = next((face.identity for face in host.interfaces if face.name == interface), "")
        return f"{host.identity} {interface} {identity}" if identity else None
    # Where the system chose the interface we cannot tell which it was, but for ranks of one machine.
    local = address and ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return f"{host.identity} loopback" if local else None


class KnownLinks:
    """The file, ``links.json`` of the cache unless told otherwise. Whatever is wrong with it, links are only measured
    anew: it raises nothing."""

    def __init__(self, path: Path | None = None, now: float | None = None) -> None:
        self._now = time.time() if now is None else now
        try:
            self._path = path or cache_directory() / "links.json"
        except RuntimeError as error:
            _log.info("links are not remembered: %s", error)
            self._path = Path(os.devnull)
        self._links = self._read()

    def find(self, ends: Ends | None) -> Measured | None:
        """Cost of the link between these ends, if it is known and not too old."""
        one = self._links.get(_key(ends)) if ends is not None else None
        return None if ends is None or one is None else _turned(ends, one)

    def store(self, measured: Mapping[Ends, Measured]) -> None:
        """Remember what was measured just now."""
        if not measured or self._path == Path(os.devnull):
            return
        try:
            with locked(self._path.with_name(".links.lock"), _LOCK_SECONDS):
                self._links = self._read()  # ranks of the same host have written meanwhile
                for ends, one in measured.items():
                    self._links[_key(ends)] = replace(_turned(ends, one), at=self._now)
                newest = sorted(self._links.items(), key=lambda item: -(item[1].at or 0))[:_MAX_LINKS]
                write_record(self._path, _File(_VERSION, dict(newest)))
        except OSError as error:
            _log.info("what the links cost cannot be kept in %s: %s", self._path, error)

    def _read(self) -> dict[str, Measured]:
        try:
            found = read_record(self._path, _File)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            if self._path != Path(os.devnull):
                _log.warning("%s cannot be read (%r): links are measured anew", self._path, error)
            return {}
        if found.version != _VERSION:
            return {}
        return {key: one for key, one in found.links.items() if 0 <= self._now - (one.at or 0) <= MAX_AGE_SECONDS}


def _turned(ends: Ends, one: Measured) -> Measured:
    """Between costs from the lower to the higher rank, and from the first end in the order of their names."""
    return one if ends[0] <= ends[1] else replace(one, up=one.down, down=one.up)


def _key(ends: Ends) -> str:
    return " | ".join(("tcp", *sorted(ends)))

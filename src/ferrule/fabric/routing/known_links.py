"""What links cost when they were measured at earlier starts: a file of the user's, by what identifies a link."""

from __future__ import annotations

import ipaddress
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.routing.paths import Rail
from ferrule.files import cache_directory, locked, write_whole

_log = logging.getLogger(__name__)

MAX_AGE_SECONDS = 7 * 86400.0
_VERSION = 2
_MAX_LINKS = 300
_LOCK_SECONDS = 0.5

Ends = tuple[str, str]
"""What identifies a link: the end at the lower rank, and the one at the higher rank."""


def default_path() -> Path:
    """``$XDG_CACHE_HOME/ferrule/links.json``, by default below ``~/.cache``. Raises `RuntimeError` without a home."""
    return cache_directory() / "links.json"


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
    """The file. Whatever is wrong with it, links are only measured anew: it raises nothing."""

    def __init__(self, path: Path | None = None, now: float | None = None) -> None:
        self._now = time.time() if now is None else now
        try:
            self._path = path or default_path()
        except RuntimeError as error:
            _log.info("links are not remembered: %s", error)
            self._path = Path(os.devnull)
        self._links = self._read()

    def find(self, ends: Ends | None) -> Measured | None:
        """What the link between these ends cost, if that is known and not too old."""
        entry = self._links.get(_key(ends)) if ends is not None else None
        if ends is None or entry is None:
            return None
        forth, back = (entry["forth"], entry["back"]) if ends[0] <= ends[1] else (entry["back"], entry["forth"])
        return Measured(entry["alpha"], forth, back, entry["sockets"], entry["at"])

    def store(self, measured: Mapping[Ends, Measured]) -> None:
        """Remember what was measured just now."""
        if not measured or self._path == Path(os.devnull):
            return
        try:
            with locked(self._path.with_name(".links.lock"), _LOCK_SECONDS):
                self._links = self._read()  # ranks of the same host have written meanwhile
                for ends, one in measured.items():
                    forth, back = (one.up, one.down) if ends[0] <= ends[1] else (one.down, one.up)
                    self._links[_key(ends)] = {
                        "alpha": one.alpha,
                        "forth": forth,
                        "back": back,
                        "sockets": one.sockets,
                        "at": self._now,
                    }
                self._write()
        except OSError as error:
            _log.info("what the links cost cannot be kept in %s: %s", self._path, error)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self._path.read_text())
            if found["version"] != _VERSION:
                return {}
            return {str(key): entry for key, entry in found["links"].items() if self._valid(entry)}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if self._path != Path(os.devnull):
                _log.warning("%s cannot be read (%r): links are measured anew", self._path, error)
            return {}

    def _valid(self, entry: Any) -> bool:
        numbers = [entry[name] for name in ("alpha", "forth", "back", "at")]
        costs = all(isinstance(number, float) and math.isfinite(number) and number > 0 for number in numbers)
        return costs and entry["sockets"] in (1, 2) and 0 <= self._now - entry["at"] <= MAX_AGE_SECONDS

    def _write(self) -> None:
        newest = sorted(self._links.items(), key=lambda item: -item[1]["at"])[:_MAX_LINKS]
        write_whole(self._path, json.dumps({"version": _VERSION, "links": dict(newest)}, indent=1))


def _key(ends: Ends) -> str:
    return " | ".join(("tcp", *sorted(ends)))

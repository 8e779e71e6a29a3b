"""Read profiles of machines, cables and whole labs from TOML: those that ship with Ferrule, and a user's own files.

A file of one's own has the same tables as those that ship with Ferrule, and may use what those define; docs/lab.md
shows one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from ferrule.errors import ConfigError
from ferrule.hardware.profiles import CableProfile, Figure, LabProfile, Machine, Usb4Lanes
from ferrule.hardware.shaping import Shaping, parse_number
from ferrule.units import parse_bytes

SHIPPED = ("machines.toml", "cables.toml", "labs.toml")
DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8")
TRANSPORTS = ("tcp", "verbs")
MAX_HOSTS = 64
_T = TypeVar("_T")


@dataclass
class Profiles:
    """All that is known, by name."""

    machines: dict[str, Machine] = field(default_factory=dict)
    cables: dict[str, CableProfile] = field(default_factory=dict)
    labs: dict[str, LabProfile] = field(default_factory=dict)

    def by_gpu(self, vendor: int, device: int | None) -> Machine | None:
        """The first machine with this GPU, by the numbers of PCI."""
        wanted = f"{vendor:04x}:{device or 0:04x}"
        return next((machine for machine in self.machines.values() if wanted in machine.gpu), None)

    def add(self, text: str, origin: str) -> list[str]:
        """Read one file's text; returns the names of its labs. Raises `ConfigError`: where, what and what would do."""
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{origin} is not TOML: {error}") from None
        _known(tables, ("machine", "cable", "lab"), origin, "table")
        for name, table in _tables(tables, "machine", origin):
            self.machines[name] = _machine(name, table, f"{origin}, [machine.{name}]")
        for name, table in _tables(tables, "cable", origin):
            self.cables[name] = _cable(name, table, f"{origin}, [cable.{name}]")
        found = []
        for name, table in _tables(tables, "lab", origin):
            self.labs[name] = _Wiring(self, f"{origin}, [lab.{name}]").lab(name, table)
            found.append(name)
        return found


def shipped() -> Profiles:
    """The profiles that come with Ferrule."""
    profiles = Profiles()
    folder = files("ferrule.hardware") / "data"
    for name in SHIPPED:
        profiles.add((folder / name).read_text(encoding="utf-8"), name)
    return profiles


def find_lab(name_or_file: str) -> LabProfile:
    """A lab that ships with Ferrule, or the one that a TOML file defines. Raises `ConfigError` where there is none."""
    profiles = shipped()
    if name_or_file in profiles.labs:
        return profiles.labs[name_or_file]
    path = Path(name_or_file)
    if path.suffix != ".toml" and not path.exists():
        raise ConfigError(
            f"there is no lab {name_or_file!r}; choose one of {', '.join(profiles.labs)}, or name a TOML file"
        )
    try:
        labs = profiles.add(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if len(labs) != 1:
        raise ConfigError(f"{path} must define one lab as [lab.NAME], not {len(labs)}")
    return profiles.labs[labs[0]]


def _machine(name: str, table: Mapping[str, Any], where: str) -> Machine:
    _known(table, ("title", "memory", "memory_bandwidth", "flops", "gpu", *_OPTIONAL), where, "entry")
    return Machine(
        name=name,
        title=_text(table, "title", where),
        memory=_figure(table, "memory", where, parse_bytes),
        memory_bandwidth=_figure(table, "memory_bandwidth", where, _bytes_per_second),
        flops=_flops(table, where),
        gpu=_gpu(table.get("gpu", []), where),
        **{key: _figure(table, key, where, parse) for key, parse in _OPTIONAL.items() if key in table},
    )


def _gpu(entry: Any, where: str) -> tuple[str, ...]:
    if not isinstance(entry, list) or not all(re.fullmatch("[0-9a-f]{4}:[0-9a-f]{4}", str(one)) for one in entry):
        raise ConfigError(f'{where}: gpu lists PCI vendors and devices in small letters: gpu = ["10de:2204"]')
    return tuple(entry)


def _flops(table: Mapping[str, Any], where: str) -> dict[str, Figure]:
    entries = table.get("flops")
    if not isinstance(entries, dict) or not entries or "value" in entries:
        raise ConfigError(f"{where}: flops is a table of {', '.join(DTYPES)}: write [machine.NAME.flops]")
    _known(entries, DTYPES, f"{where}, flops", "type")
    return {dtype: _figure(entries, dtype, f"{where}, flops", float) for dtype in entries}


def _bytes_per_second(text: str) -> int:
    return parse_bytes(text.removesuffix("/s"))


_OPTIONAL: dict[str, Callable[[str], float]] = {
    "disk_read": _bytes_per_second,
    "watts_idle": float,
    "watts_busy": float,
    "price": float,
}


def _cable(name: str, table: Mapping[str, Any], where: str) -> CableProfile:
    numbers = [key for key in table if key not in ("title", "transport", "usb4")]
    _known(table, ("title", "mtu", *Shaping.__dataclass_fields__, "transport", "usb4"), where, "entry")
    figures = {key: _figure(table, key, where, int if key == "mtu" else partial(parse_number, key)) for key in numbers}
    found: dict[str, Any] = {key: figure.value for key, figure in figures.items()}
    mtu = found.pop("mtu", None)
    try:
        shaping = Shaping(**found)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if mtu is not None and not 68 <= mtu <= 65535:
        raise ConfigError(f"{where}: mtu must be from 68 to 65535 bytes, not {mtu}")
    transport = _text(table, "transport", where) if "transport" in table else "tcp"
    if transport not in TRANSPORTS:
        raise ConfigError(f"{where}: transport is one of {', '.join(TRANSPORTS)}, not {transport!r}")
    usb4 = _usb4(table["usb4"], where) if "usb4" in table else None
    return CableProfile(name, _text(table, "title", where), shaping, mtu, figures, transport, usb4)


def _usb4(entry: Any, where: str) -> Usb4Lanes:
    if not isinstance(entry, dict) or set(entry) != {"lanes", "gbps"}:
        raise ConfigError(f"{where}: usb4 says how the cable trained: usb4 = {{ lanes = 2, gbps = 20 }}")
    lanes, gbps = entry["lanes"], entry["gbps"]
    if lanes not in (1, 2) or gbps not in (10, 20):
        raise ConfigError(f"{where}, usb4: there are 1 or 2 lanes of 10 or 20 Gb/s, not {lanes} of {gbps}")
    return Usb4Lanes(lanes, gbps)


@dataclass(frozen=True)
class _Wiring:
    """Reads a lab's tables with what is known of machines and cables."""

    known: Profiles
    where: str

    def lab(self, name: str, table: Mapping[str, Any]) -> LabProfile:
        _known(table, ("title", "hosts", "cables"), self.where, "entry")
        hosts: dict[str, Machine] = {}
        for entry in self._entries(table, "hosts"):
            _known(entry, ("name", "machine", "count"), f"{self.where}, hosts", "entry")
            machine = self._named(entry, "machine", self.known.machines)
            stem, count = _text(entry, "name", f"{self.where}, hosts"), self._count(entry)
            hosts |= {f"{stem}-{number}": machine for number in range(1, count + 1)}
        if not 1 <= len(hosts) <= MAX_HOSTS:
            raise ConfigError(f"{self.where}: a lab has 1 to {MAX_HOSTS} hosts, not {len(hosts)}")
        names = tuple(hosts)
        cables: list[tuple[CableProfile, tuple[int, ...]]] = []
        for entry in self._entries(table, "cables"):
            _known(entry, ("cable", "count", "between", "mesh", "switch"), f"{self.where}, cables", "entry")
            cable = self._named(entry, "cable", self.known.cables)
            cables += [(cable, ends) for ends in self._ends(entry, names) for _ in range(self._count(entry))]
        return LabProfile(name, _text(table, "title", self.where), names, tuple(hosts.values()), tuple(cables))

    def _ends(self, entry: Mapping[str, Any], names: Sequence[str]) -> list[tuple[int, ...]]:
        keys = [key for key in ("between", "mesh", "switch") if key in entry]
        if len(keys) != 1:
            raise ConfigError(f"{self.where}, cables: each needs one of between, mesh or switch, with names of hosts")
        wanted = entry[keys[0]]
        if not isinstance(wanted, list) or len(wanted) < 2 or len(set(map(str, wanted))) != len(wanted):
            raise ConfigError(f"{self.where}, cables: {keys[0]} lists two different hosts or more")
        for name in wanted:
            if name not in names:
                raise ConfigError(f"{self.where}, cables: there is no host {name!r}, only {', '.join(names)}")
        hosts = tuple(names.index(name) for name in wanted)
        if keys[0] == "between" and len(hosts) != 2:
            raise ConfigError(f"{self.where}, cables: between lists two hosts, not {len(hosts)}; see mesh and switch")
        return list(combinations(hosts, 2)) if keys[0] == "mesh" else [hosts]

    def _entries(self, table: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        entries = table.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ConfigError(f'{self.where}: {key} is a list of tables, such as [{{ name = "box", count = 2 }}]')
        return entries

    def _count(self, entry: Mapping[str, Any]) -> int:
        count = entry.get("count", 1)
        if not isinstance(count, int) or not 1 <= count <= MAX_HOSTS:
            raise ConfigError(f"{self.where}: count is a number from 1 to {MAX_HOSTS}, not {count!r}")
        return count

    def _named(self, entry: Mapping[str, Any], key: str, known: Mapping[str, _T]) -> _T:
        name = _text(entry, key, self.where)
        if name not in known:
            raise ConfigError(f"{self.where}: there is no {key} {name!r}; known are {', '.join(known)}")
        return known[name]


def _tables(tables: Mapping[str, Any], key: str, origin: str) -> list[tuple[str, Mapping[str, Any]]]:
    found = tables.get(key, {})
    if not isinstance(found, dict) or not all(isinstance(table, dict) for table in found.values()):
        raise ConfigError(f"{origin}: [{key}] holds tables of its own: write [{key}.NAME]")
    return list(found.items())


def _known(table: Mapping[str, Any], names: Sequence[str], where: str, what: str) -> None:
    for name in table:
        if name not in names:
            raise ConfigError(f"{where}: there is no {what} {name!r}; there are {', '.join(names)}")


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    text = table.get(key)
    if not isinstance(text, str) or not text:
        raise ConfigError(f'{where}: {key} is missing; write {key} = "..."')
    return text


def _figure(table: Mapping[str, Any], key: str, where: str, parse: Callable[[str], Any]) -> Figure:
    entry = table.get(key)
    if (
        not isinstance(entry, dict)
        or not {"value", "source"} <= set(entry) <= {"value", "source", "url"}
        or not all(isinstance(entry.get(word, ""), str) for word in ("source", "url"))
    ):
        raise ConfigError(
            f"{where}: {key} needs a value and its source, and may have the url of that: "
            f'{key} = {{ value = ..., source = "...", url = "..." }}'
        )
    try:
        value = parse(str(entry["value"]))
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{where}, {key}: {error}") from None
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{where}, {key}: a number from 0 on is needed, not {entry['value']!r}")
    return Figure(value, entry["source"], entry.get("url", ""))

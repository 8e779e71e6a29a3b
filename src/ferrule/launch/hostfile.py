"""Hosts that a job may use: from our TOML, MLX's JSON, ``host slots=n`` lines, or a list on the command line; pure.

TOML::

    python = "/opt/venv/bin/python"  # for all hosts, as `cwd` and `env`; each may be set for one host too
    [env]
    OMP_NUM_THREADS = "4"

    [[host]]
    name = "strix-a"                 # as for ssh: strix-a, me@strix-a, 10.0.0.1, ssh://me@strix-a:2222
    slots = 2                        # how many ranks it takes, by default 1
    address = "10.0.0.1"             # by which the others reach it, if not by that which ssh took
    rdma = ["", "rdma_en5"]          # for MLX: the RDMA device to each host of this file, if not as found
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ferrule.config import is_address
from ferrule.errors import ConfigError

MAX_SLOTS = 1024
_LINE_WORDS = ("slots", "max_slots", "max-slots")
_JSON = re.compile(r'\s*(\{|\[\s*["{\]]|\[\s*\[\s*["\]])')
_TOML = re.compile(r"\s*(\[{1,2}\s*\w+\s*\]|\w+\s*=)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACKETS = "write [[host]] with two brackets, once per host"
_MLX = 'MLX writes [{"ssh": "mac-a", "ips": ["10.0.0.1"]}, ...]'

S = TypeVar("S", bound=msgspec.Struct)
Text = Annotated[str, Meta(min_length=1)]
Texts = Text | tuple[Text, ...]
Rdma = tuple[str | tuple[Text, ...] | None, ...] | None


class _Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    python: str | None = None
    cwd: str | None = None
    env: dict[str, str | int | float | bool] = {}


class _TomlFile(_Common, frozen=True, forbid_unknown_fields=True):
    host: tuple[object, ...] = ()


class _TomlHost(_Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    slots: int = 1
    address: Texts = ()
    rdma: Rdma = None


class _MlxFile(msgspec.Struct, frozen=True):
    hosts: tuple[object, ...]
    envs: Texts = ()


class _MlxHost(msgspec.Struct, frozen=True):
    ssh: str
    ips: Texts = ()
    rdma: Rdma = None


@dataclass(frozen=True)
class HostEntry:
    """A host of a job. ``name``: as for ssh. ``addresses``: by which the others reach it, the best first; empty: by
    that which ssh took. ``python`` and ``cwd``: None for those of the launcher. ``rdma[i]``: MLX's devices to host i.
    ``where``: in which line it stands, for errors."""

    name: str
    slots: int = 1
    addresses: tuple[str, ...] = ()
    python: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    rdma: tuple[tuple[str, ...], ...] | None = None
    where: str = ""


def read_hostfile(path: Path) -> tuple[HostEntry, ...]:
    """Raises `ConfigError` that names the file, the place in it and the cure."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"cannot read the hostfile {path}: {why}") from error
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, origin: str) -> tuple[HostEntry, ...]:
    """The format follows from the text. ``origin``: its name in errors. Raises `ConfigError`."""
    significant = next((line for line in text.splitlines() if line.split("#")[0].strip()), "")
    if _JSON.match(text):
        entries = _from_json(text, origin)
    elif _TOML.match(significant):
        entries = _from_toml(text, origin)
    else:
        entries = _from_lines(text, origin)
    return _checked(entries, origin)


def parse_hosts(text: str) -> tuple[HostEntry, ...]:
    """``a,b:2``: two hosts, of which the second takes two ranks. Raises `ConfigError`."""
    origin = f"--hosts {text}"
    return _checked([_from_word(word.strip(), "", origin) for word in text.split(",")], origin)


def check_variable(name: str, where: str) -> str:
    """``name`` if it can be that of an environment variable; raises `ConfigError`."""
    if not _VARIABLE.fullmatch(name):
        raise ConfigError(f"{where}: {name!r} is no name of an environment variable")
    return name


def _checked(entries: Sequence[HostEntry], origin: str) -> tuple[HostEntry, ...]:
    if not entries:
        raise ConfigError(f"{origin} names no host; write one per line: strix-a slots=2")
    first: dict[str, HostEntry] = {}
    for entry in entries:
        where = f"{origin}{entry.where}"
        if not entry.name or entry.name.startswith("-") or not entry.name.isprintable() or " " in entry.name:
            raise ConfigError(f"{where}: {entry.name!r} is no host; write it as for ssh: strix-b or me@strix-b")
        if not 1 <= entry.slots <= MAX_SLOTS:
            raise ConfigError(f"{where}: {entry.name} has slots = {entry.slots}; give a number from 1 to {MAX_SLOTS}")
        twin = first.setdefault(entry.name, entry)
        if twin is not entry:
            also = f" (first{twin.where})" if twin.where else ""
            raise ConfigError(
                f"{where}: {entry.name} is there twice{also}; name it once, with slots={twin.slots + entry.slots} "
                "if it is to take that many ranks"
            )
        if entry.rdma is not None and len(entry.rdma) != len(entries):
            raise ConfigError(
                f"{where}: rdma of {entry.name} has {len(entry.rdma)} entries for {len(entries)} hosts; "
                "give one per host of the file, in their order, and an empty one for itself"
            )
    return tuple(entries)


def _from_lines(text: str, origin: str) -> list[HostEntry]:
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        host, *words = line.split("#")[0].split() or [""]
        if not host:
            continue
        where = f", line {number}"
        entry = _from_word(host, where, origin)
        for word in words:
            name, equals, value = word.partition("=")
            if name not in _LINE_WORDS or not equals:
                raise ConfigError(f"{origin}{where}: {word!r} is not understood; write {host} slots=2")
            if name == "slots":
                entry = replace(entry, slots=_count(value, f"{origin}{where}"))
        entries.append(entry)
    return entries


def _from_word(word: str, where: str, origin: str) -> HostEntry:
    """``host`` or ``host:n``; IPv6 addresses have colons of their own."""
    host, colon, number = word.rpartition(":")
    if colon and not is_address(word) and "://" not in word:
        return HostEntry(_bare(host), _count(number, f"{origin}{where}"), where=where)
    return HostEntry(_bare(word), where=where)


def _bare(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _count(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{where}: {text!r} is no number of slots")
    return int(text)


def _from_toml(text: str, origin: str) -> list[HostEntry]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin} is no TOML: {error}") from error
    common = _read(table, _TomlFile, origin, _BRACKETS)
    env = _variables(common, origin)
    entries = []
    for number, each in enumerate(common.host, 1):
        where = f", host {number}"
        host = _read(each, _TomlHost, f"{origin}{where}", 'such as name = "strix-a"')
        entries.append(
            HostEntry(
                host.name,
                host.slots,
                addresses=_tuple(host.address),
                python=host.python or common.python,
                cwd=host.cwd or common.cwd,
                env=env | _variables(host, f"{origin}{where}"),
                rdma=_rdma(host.rdma),
                where=where,
            )
        )
    return entries


def _from_json(text: str, origin: str) -> list[HostEntry]:
    """Hosts in the JSON that ``mlx.distributed_config`` writes and ``mlx.launch`` reads."""
    try:
        read = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{origin} is no JSON: {error}") from error
    file = _read({"hosts": read} if isinstance(read, list) else read, _MlxFile, origin, _MLX)
    variables = (word.partition("=") for word in _tuple(file.envs))
    env = {check_variable(name, origin): value for name, _, value in variables}
    entries = []
    for number, each in enumerate(file.hosts, 1):
        where = f", host {number}"
        host = _read(each, _MlxHost, f"{origin}{where}", _MLX)
        entries.append(
            HostEntry(host.ssh, addresses=_tuple(host.ips), env=env, rdma=_rdma(host.rdma or None), where=where)
        )
    return entries


def _read(value: object, kind: type[S], where: str, example: str) -> S:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        fields = ", ".join(sorted(kind.__struct_fields__))
        raise ConfigError(f"{where}: {error}; there are {fields}: {example}") from None


def _variables(table: _Common, where: str) -> dict[str, str]:
    return {check_variable(name, where): str(value) for name, value in table.env.items()}


def _rdma(devices: Rdma) -> tuple[tuple[str, ...], ...] | None:
    """For each host one device, several, or none."""
    return None if devices is None else tuple(_tuple(each or ()) for each in devices)


def _tuple(texts: Texts) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts

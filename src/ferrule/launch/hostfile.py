"""Which hosts a job may use: from our TOML, MLX's JSON, ``host slots=n`` lines, or a list on the command line; pure.

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

import ipaddress
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ferrule.errors import ConfigError

MAX_SLOTS = 1024
_FIELDS = {"name", "slots", "address", "python", "cwd", "env", "rdma"}
_COMMON = {"host", "python", "cwd", "env"}
_LINE_WORDS = ("slots", "max_slots", "max-slots")
_JSON = re.compile(r'\s*(\{|\[\s*["{\]]|\[\s*\[\s*["\]])')
_TOML = re.compile(r"\s*(\[{1,2}\s*\w+\s*\]|\w+\s*=)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    if colon and not _is_address(word) and "://" not in word:
        return HostEntry(_bare(host), _count(number, f"{origin}{where}"), where=where)
    return HostEntry(_bare(word), where=where)


def _bare(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _count(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{where}: {text!r} is no number of slots")
    return int(text)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _from_toml(text: str, origin: str) -> list[HostEntry]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin} is no TOML: {error}") from error
    _known(table, _COMMON, origin)
    hosts = table.get("host", [])
    if not isinstance(hosts, list):
        raise ConfigError(f"{origin}: write [[host]] with two brackets, once per host")
    common = _settings(table, origin)
    return [_from_table(entry, number, origin, common) for number, entry in enumerate(hosts, 1)]


def _from_table(table: Any, number: int, origin: str, common: HostEntry) -> HostEntry:
    where = f", host {number}"
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise ConfigError(f'{origin}{where} has no name; write name = "strix-a"')
    _known(table, _FIELDS, f"{origin}{where}")
    own = _settings(table, f"{origin}{where}")
    slots = table.get("slots", 1)
    if not isinstance(slots, int) or isinstance(slots, bool):
        raise ConfigError(f"{origin}{where}: slots = {slots!r} is no whole number")
    return HostEntry(
        name=table["name"],
        slots=slots,
        addresses=_texts(table.get("address", []), "address", f"{origin}{where}"),
        python=own.python or common.python,
        cwd=own.cwd or common.cwd,
        env={**common.env, **own.env},
        rdma=_rdma(table.get("rdma"), f"{origin}{where}"),
        where=where,
    )


def _settings(table: Mapping[str, Any], where: str) -> HostEntry:
    """What stands for one host or for all: ``python``, ``cwd`` and ``env``."""
    for name in ("python", "cwd"):
        if not isinstance(table.get(name, ""), str):
            raise ConfigError(f"{where}: {name} = {table[name]!r} is no text")
    env = table.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(value, str | int | float) for value in env.values()):
        raise ConfigError(f'{where}: env is no table of texts; write env = {{ NAME = "value" }}')
    found = {check_variable(name, where): str(value) for name, value in env.items()}
    return HostEntry("", python=table.get("python"), cwd=table.get("cwd"), env=found)


def _from_json(text: str, origin: str) -> list[HostEntry]:
    """What ``mlx.distributed_config`` writes and ``mlx.launch`` reads."""
    try:
        read = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{origin} is no JSON: {error}") from error
    common: dict[str, str] = {}
    if isinstance(read, dict):
        for word in _texts(read.get("envs", []), "envs", origin):
            name, _, value = word.partition("=")
            common[check_variable(name, origin)] = value
        read = read.get("hosts")
    if not isinstance(read, list):
        raise ConfigError(f'{origin} has no list of hosts; MLX writes [{{"ssh": "mac-a", "ips": ["10.0.0.1"]}}, ...]')
    entries = []
    for number, host in enumerate(read, 1):
        where = f", host {number}"
        if not isinstance(host, dict) or not isinstance(host.get("ssh"), str):
            raise ConfigError(f'{origin}{where}: {json.dumps(host)} has no "ssh"; give the name that ssh knows')
        addresses = _texts(host.get("ips", []), "ips", f"{origin}{where}")
        rdma = _rdma(host.get("rdma") or None, f"{origin}{where}")
        entries.append(HostEntry(host["ssh"], addresses=addresses, env=common, rdma=rdma, where=where))
    return entries


def _rdma(value: Any, where: str) -> tuple[tuple[str, ...], ...] | None:
    """For each host one device, several, or none."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ConfigError(f'{where}: rdma is no list; write rdma = ["", "rdma_en5"]')
    return tuple(_texts(one or [], "rdma", where) for one in value)


def _texts(value: Any, name: str, where: str) -> tuple[str, ...]:
    """A text, or a list of them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        raise ConfigError(f"{where}: {name} = {json.dumps(value)} is no text and no list of texts")
    return tuple(texts)


def _known(table: Iterable[str], fields: set[str], where: str) -> None:
    unknown = sorted(set(table) - fields)
    if unknown:
        raise ConfigError(f"{where}: {', '.join(unknown)} is not understood; there are {', '.join(sorted(fields))}")

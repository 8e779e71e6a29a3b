"""Places and a task from a user's request in words (hosts, command, variables); pure but for this machine's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ferrule.config import OUTER_JOB
from ferrule.errors import ConfigError
from ferrule.launch.hostfile import MAX_SLOTS, HostEntry, check_variable, parse_hosts, read_hostfile
from ferrule.launch.launcher import MlxBackend, Task

_OWN = OUTER_JOB | {"FERRULE_HOST_ID", "FERRULE_DEBUG"}
"""Variables that are this process's own business."""


def choose_hosts(
    ranks: int | None, hosts: str | None, hostfile: Path | None, *, python: str | None = None
) -> tuple[HostEntry, ...]:
    """The hosts that were named, or this machine for all ranks. ``python``: of hosts that do not name their own.

    Raises `ConfigError`."""
    if hosts is not None and hostfile is not None:
        raise ConfigError("give --hosts or --hostfile, not both")
    if hosts is not None:
        entries = parse_hosts(hosts)
    elif hostfile is not None:
        entries = read_hostfile(hostfile)
    elif ranks is None:
        raise ConfigError("how many ranks? give -n 2, or hosts: --hosts strix-a,strix-b")
    else:
        entries = spread(("localhost",), ranks)
    return tuple(replace(entry, python=entry.python or python) for entry in entries)


def spread(names: Sequence[str], ranks: int | None) -> tuple[HostEntry, ...]:
    """Ranks over all of these hosts, as evenly as it goes; None: one on each. Raises `ConfigError`."""
    wanted = len(names) if ranks is None else ranks
    if not 1 <= wanted <= MAX_SLOTS:
        raise ConfigError(f"-n {ranks} is no number of ranks from 1 to {MAX_SLOTS}")
    each, more = divmod(wanted, len(names))
    slots = [each + (index < more) for index in range(len(names))]
    return tuple(HostEntry(name, count) for name, count in zip(names, slots, strict=True) if count)


def chosen_of(names: Sequence[str], ranks: int | None, hosts: str | None, whose: str) -> tuple[HostEntry, ...]:
    """Hosts of ``names``, that are up, with their numbers of ranks: those of ``--hosts``, or all. ``whose``: what they
    belong to, for errors. Raises `ConfigError`."""
    if hosts is None:
        return spread(names, ranks)
    entries = parse_hosts(hosts)
    for entry in entries:
        if entry.name not in names:
            raise ConfigError(f"no host {entry.name!r} of {whose} is up, only {', '.join(names)}")
    return entries


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Ferrule's settings, which must be the same on all hosts, as this process has them."""
    return {name: value for name, value in environ.items() if name.startswith("FERRULE_") and name not in _OWN}


def chosen_variables(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """``NAME=VALUE``, or ``NAME`` for the value that it has here. Raises `ConfigError`."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        check_variable(name, f"--env {word}")
        if not equals and name not in environ:
            raise ConfigError(f"--env {name}: it is not set here; give --env {name}=VALUE")
        found[name] = value if equals else environ[name]
    return found


def make_task(
    words: Sequence[str], cwd: str, env: Mapping[str, str], *, module: bool = False, mlx: MlxBackend = "own"
) -> Task:
    """``script.py`` and, with ``module``, the name of a module are run by the Python of each host; anything else is a
    command. Raises `ConfigError`."""
    if not words:
        raise ConfigError("what to run? give a script, -m MODULE, or a command behind --")
    argv: tuple[str | None, ...] = tuple(words)
    if module:
        argv = (None, "-m", *words)
    elif words[0].endswith(".py"):
        argv = (None, *words)
    return Task(argv, cwd, env, mlx)

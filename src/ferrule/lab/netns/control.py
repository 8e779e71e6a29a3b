"""Labs that stay up: start them, ask them, end them, and enter their hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferrule.errors import ConfigError, LabError
from ferrule.hardware import find_lab, shipped
from ferrule.lab.daemon import client, registry
from ferrule.lab.netns.lab import obstacle
from ferrule.lab.netns.namespace import ENTER

UP_SECONDS = 60.0
_ASK_SECONDS = 20.0


def up(name_or_file: str, *, name: str | None = None, seed: int = 0) -> dict[str, Any]:
    """Start a lab that stays until `down`; returns its status. ``name``: what to call it, if not as its profile.

    Without root it goes into a user namespace where the machine allows that. Raises `ConfigError` for a wrong profile
    or a name that is taken, `LabError` where there can be no lab.
    """
    profile = find_lab(name_or_file)
    title = registry.check_name(name or profile.name)
    wanted = name_or_file if name_or_file in shipped().labs else str(Path(name_or_file).resolve())
    prefix = _rights()

    def command(folder: Path) -> list[str]:
        return [*prefix, sys.executable, "-m", "ferrule.lab.netns.daemon", str(folder), wanted, str(seed)]

    client.up(registry.LABS, title, command, UP_SECONDS, "ferrule lab down")
    status: dict[str, Any] = ask(title, "status")
    return status


def down(names: Sequence[str] = ()) -> list[str]:
    """End these labs, or all, and clear away what is left of others; returns the names of those that ended."""
    return client.down(registry.LABS, names, UP_SECONDS)


def labs() -> tuple[list[dict[str, Any]], list[str]]:
    """The status of every lab that is up, and the names of those of which something was left and is gone now."""
    with registry.alone() as folder:
        gone = registry.reap(folder)
        names = sorted(lab.name for lab in folder.iterdir() if lab.is_dir())
    return [ask(name, "status") for name in names], gone


def choose(name: str | None, host: str | None = None) -> str:
    """The lab that is meant: by its name, or the only one, or the only one with such a host."""
    folder = registry.folder()
    present = sorted(lab.name for lab in folder.iterdir() if lab.is_dir() and registry.held(lab))
    if name is not None:
        if name not in present:
            raise ConfigError(f"the lab {name!r} is not up; up are {', '.join(present) or 'none'}")
        return name
    if not present:
        raise ConfigError("no lab is up; start one, for example: ferrule lab up two-strix")
    fits = present
    if len(present) > 1 and host is not None:
        fits = [each for each in present if _has(folder / each, host)]
    if len(fits) != 1:
        raise ConfigError(f"several labs are up ({', '.join(present)}); say which with --lab NAME")
    return fits[0]


def ask(name: str, request: str, **arguments: Any) -> Any:
    """Ask the process that holds a lab. Raises `ConfigError` or `LabError` with what it answers."""
    return client.ask(registry.folder() / name, request, **arguments)


@dataclass(frozen=True)
class Entry:
    """How to run something in a host: a command to put before it, and what to add to the environment."""

    prefix: tuple[str, ...]
    env: dict[str, str]


def enter(lab: str, host: str) -> Entry:
    """The way into a host, in which every other command works unchanged."""
    folder = registry.folder() / lab
    state = registry.read_state(folder)
    found = next((each for each in state.get("hosts", ()) if each["name"] == host), None)
    if found is None:
        known = ", ".join(each["name"] for each in state.get("hosts", ()))
        raise ConfigError(f"the lab {lab!r} has no host {host!r}, only {known}")
    files = ["--hosts", str(folder / f"hosts-{host}"), "--name", host]
    prefix = (sys.executable, "-I", "-S", ENTER, "--user", state["user"], *files, found["path"])
    return Entry(prefix, {"FERRULE_LAB": lab, "FERRULE_HOST_ID": host})


@dataclass(frozen=True)
class Place:
    """Where this process is: in a host of a lab."""

    lab: str
    host: str


def here() -> Place | None:
    """The lab host in which this process runs, by its environment; None outside of labs."""
    lab, host = os.environ.get("FERRULE_LAB"), os.environ.get("FERRULE_HOST_ID")
    return Place(lab, host) if lab and host else None


def _rights() -> list[str]:
    """What to put before the holder's command so that it may make network namespaces."""
    reason = obstacle()
    if reason is None:
        return []
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 and unshare is not None:
        prefix = [unshare, "--user", "--map-root-user", "--net", "--mount"]
        tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False, timeout=_ASK_SECONDS)
        if tried.returncode == 0:
            return prefix
        reason = f"{reason} (`unshare`: {tried.stderr.strip()})"
    raise LabError(reason)


def _has(lab: Path, host: str) -> bool:
    return any(each["name"] == host for each in registry.read_state(lab).get("hosts", ()))

"""Labs that stay up: start them, ask them, end them, and enter their hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import ConfigError, LabError
from ferrule.hardware import find_lab
from ferrule.lab.daemon import client, registry
from ferrule.lab.daemon.messages import Fault, Status
from ferrule.lab.netns.lab import obstacle
from ferrule.lab.netns.namespace import ENTER
from ferrule.lab.netns.status import CableStatus, LabStatus

UP_SECONDS = 60.0
_ASK_SECONDS = 20.0


def up(name_or_file: str, *, name: str | None = None, seed: int = 0) -> LabStatus:
    """Start a lab that stays until `down`. ``name``: what to call it, if not as its profile.

    Without root it goes into a user namespace where the machine allows that. Raises `ConfigError` for a wrong profile
    or a name that is taken, `LabError` where there can be no lab.
    """
    profile = find_lab(name_or_file)
    program = [*_rights(), sys.executable, "-m", "ferrule.lab.netns.daemon"]
    end = "ferrule lab down"
    return status(
        client.up(registry.LABS, profile, name_or_file, name, program, str(seed), seconds=UP_SECONDS, down=end)
    )


def down(names: Sequence[str] = ()) -> list[str]:
    """End these labs, or all, and clear away what is left of others; returns the names of those that ended."""
    return client.down(registry.LABS, names, UP_SECONDS)


def labs() -> tuple[list[LabStatus], list[str]]:
    """Every lab that is up, and the names of those of which something was left and is gone now."""
    present, gone = client.present(registry.LABS)
    return [status(lab.name) for lab in present], gone


def status(name: str) -> LabStatus:
    """Of a lab that is up. Raises `LabError` where it does not answer, as `fault` does."""
    return client.ask(registry.folder() / name, Status(), LabStatus)


def fault(name: str, cable: str, arguments: Sequence[str], sender: str | None = None) -> CableStatus:
    """Let something happen to a cable, see `ferrule.lab.netns.faults`; how it is then. Raises `ConfigError`, too."""
    return client.ask(registry.folder() / name, Fault(cable, tuple(arguments), sender), CableStatus)


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


@dataclass(frozen=True)
class Entry:
    """Entry into a host to run something there: a command to put before it, and what to add to the environment."""

    prefix: tuple[str, ...]
    env: dict[str, str]


def enter(lab: str, host: str) -> Entry:
    """The way into a host, in which every other command works unchanged."""
    folder = registry.folder() / lab
    state = registry.read_state(folder) or registry.State(0)
    found = next((each for each in state.hosts if each.name == host), None)
    if found is None:
        known = ", ".join(each.name for each in state.hosts)
        raise ConfigError(f"the lab {lab!r} has no host {host!r}, only {known}")
    files = ["--hosts", str(folder / f"hosts-{host}"), "--name", host]
    prefix = (sys.executable, "-I", "-S", ENTER, "--user", state.user, *files, found.path)
    return Entry(prefix, {"FERRULE_LAB": lab, "FERRULE_HOST_ID": host})


@dataclass(frozen=True)
class Place:
    """Place of this process: in a host of a lab."""

    lab: str
    host: str


def here() -> Place | None:
    """The lab host in which this process runs, by its environment; None outside of labs."""
    lab, host = os.environ.get("FERRULE_LAB"), os.environ.get("FERRULE_HOST_ID")
    return Place(lab, host) if lab and host else None


def _rights() -> list[str]:
    """Command to put before the holder's, so that it may make network namespaces."""
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
    state = registry.read_state(lab)
    return state is not None and any(each.name == host for each in state.hosts)

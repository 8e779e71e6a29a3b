"""Make an engine's environment, try it out, remove it. What a killed attempt left is gone on with, or removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from ferrule.engine.guests.environments import own_package
from ferrule.engine.guests.environments.environment import (
    Environment,
    Installed,
    find_environment,
    interpreter,
    own_version,
    python_of,
)
from ferrule.errors import ConfigError, InstallError
from ferrule.files import locked, write_record
from ferrule.process.output import last_line
from ferrule.units import format_bytes

Say = Callable[[str], object]
_LOCK_SECONDS = 5.0
_VENV_SECONDS = 300.0
_PIP_SECONDS = 4 * 3600.0
"""A slow line: 785 MB at half a megabit a second."""
_PROBE_SECONDS = 600.0
"""The first import compiles a few thousand modules."""


def install(environment: Environment, say: Say) -> Installed:
    """Make it, or finish it, and try it out; ``say`` gets a line for each step. Nothing is done where it is complete.

    Raises `ConfigError` where there is no room, and `InstallError` with what failed and the cure.
    """
    with _alone(environment):
        found = find_environment(environment)
        if found is not None and not own_package.outdated(found):
            return found
        environment.record.unlink(missing_ok=True)
        _check_room(environment)
        _make_venv(environment, say)
        say(f"packages: {', '.join(environment.requirements)}")
        _pip(environment, ["install", *environment.requirements, *own_package.requirements()])
        _pip(environment, ["uninstall", "--yes", *environment.unwanted])
        say(f"ferrule {own_version()}: copied from here")
        site = site_packages(environment)
        for name, version in environment.aliases:
            own_package.write_metadata(site, name, version)
        own_package.copy_into(site)
        say("trying it out")
        made = Installed(
            environment.name,
            environment.version,
            own_version(),
            own_package.digest(),
            interpreter(),
            _probe(environment),
        )
        write_record(environment.record, made)
        return made


def check(environment: Environment) -> Installed:
    """Try out what is installed. Raises `ConfigError` where it is not, and `InstallError` where it does not work: from
    then on it does not count as installed."""
    with _alone(environment):
        found = find_environment(environment)
        if found is None:
            raise not_installed(environment)
        if own_package.outdated(found):
            raise ConfigError(
                f"{environment.name} was installed by Ferrule {found.ferrule} for Python {found.python}, and this is "
                f"{own_version()} for {interpreter()}: ferrule engines install {environment.name}"
            )
        try:
            return msgspec.structs.replace(found, found=_probe(environment))
        except InstallError:
            environment.record.unlink(missing_ok=True)
            raise


def remove(environment: Environment) -> bool:
    """Remove it, also what is left of an attempt; False where there is nothing. Raises `InstallError`."""
    if not environment.folder.exists():
        return False
    with _alone(environment):
        environment.record.unlink(missing_ok=True)
        try:
            shutil.rmtree(environment.folder)
        except OSError as error:
            raise InstallError(f"{environment.folder} cannot be removed: {error}") from error
    environment.lock.unlink(missing_ok=True)
    return True


def not_installed(environment: Environment) -> ConfigError:
    return ConfigError(
        f"{environment.name} is not installed for Ferrule on this host: ferrule engines install {environment.name} "
        f"({format_bytes(environment.disk_bytes)})"
    )


def site_packages(environment: Environment) -> Path:
    return environment.folder / "lib" / f"python{interpreter()}" / "site-packages"


@contextmanager
def _alone(environment: Environment) -> Iterator[None]:
    """No other command changes it meanwhile. Raises `InstallError` where one does."""
    environment.folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(environment.lock, _LOCK_SECONDS))
        except TimeoutError as error:
            raise InstallError(f"{environment.name} is being installed, checked or removed now: {error}") from None
        yield


def _check_room(environment: Environment) -> None:
    free = shutil.disk_usage(environment.folder.parent).free
    if free < environment.disk_bytes:
        raise ConfigError(
            f"{environment.folder.parent} has {format_bytes(free)} free, and {environment.name} takes "
            f"{format_bytes(environment.disk_bytes)}; make room, or set XDG_DATA_HOME to a larger disk"
        )


def _make_venv(environment: Environment, say: Say) -> None:
    """Raises `InstallError`. One for this version of Python that has pip is kept: an earlier attempt's packages are
    in it."""
    if _runs([str(python_of(environment)), "-m", "pip", "--version"]) and site_packages(environment).is_dir():
        return
    say(f"a virtual environment in {environment.folder}")
    shutil.rmtree(environment.folder, ignore_errors=True)
    _run(
        [sys.executable, "-m", "venv", str(environment.folder)], _VENV_SECONDS, "python3-venv may have to be installed"
    )


def _pip(environment: Environment, words: Sequence[str]) -> None:
    _run(
        [str(python_of(environment)), "-m", "pip", "--no-input", "--disable-pip-version-check", *words],
        _PIP_SECONDS,
        "torch's wheels for processors are on an index of its own, of which pip must know (PIP_EXTRA_INDEX_URL)",
        shown=True,
    )


def _probe(environment: Environment) -> dict[str, str]:
    """What the probe found. Raises `InstallError`."""
    said = _run([str(python_of(environment)), "-m", environment.probe], _PROBE_SECONDS, "see what it says above")
    try:
        found = json.loads(last_line(said))
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise InstallError(f"{environment.name} was tried out and did not say how that went: {said!r}") from error


def _run(command: Sequence[str], seconds: float, cure: str, *, shown: bool = False) -> str:
    """What it prints, and its errors go to this process's; or, with ``shown``, both do: it takes minutes. Raises
    `InstallError`."""
    out = sys.stderr.fileno() if shown else subprocess.PIPE
    try:
        ended = subprocess.run(command, stdout=out, stdin=subprocess.DEVNULL, env=_clean(), timeout=seconds, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{' '.join(command[:4])} failed: {error}") from error
    if ended.returncode:
        word = last_line(ended.stdout or "") or "see above"
        raise InstallError(
            f"{' '.join(command[:4])} ended with {ended.returncode}: {word}; {cure}. "
            "The same command of ferrule goes on where this one ended"
        )
    return ended.stdout or ""


def _runs(command: Sequence[str]) -> bool:
    try:
        ended = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, env=_clean(), timeout=_VENV_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def _clean() -> dict[str, str]:
    """The environment without what would lead into this process's packages."""
    return {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }

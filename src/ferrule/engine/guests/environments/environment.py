"""What an engine's environment is made of, where it lies, and whether it is there."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ferrule.files import FileRecord, data_directory, read_record
from ferrule.installation import version_of

_RECORD = "installed.json"


@dataclass(frozen=True)
class Environment:
    """``requirements``: as pip takes them. ``unwanted``: packages that they bring along and that must not be there.
    ``aliases``: names and versions by which the engine looks itself up besides its own. ``probe``: the module that,
    run in it, tries it out and prints a line of JSON. Bytes are about how many it takes."""

    name: str
    version: str
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...]
    probe: str
    download_bytes: int
    disk_bytes: int

    @property
    def folder(self) -> Path:
        """Where it lies, of this user; it need not exist. Raises `RuntimeError` for a user without a home."""
        return data_directory() / "engines" / f"{self.name}-{self.version}"

    @property
    def record(self) -> Path:
        """Written when all is there and was tried out, and removed first: without it, nothing counts as installed."""
        return self.folder / _RECORD

    @property
    def lock(self) -> Path:
        """Beside the folder, which is removed while it is held."""
        return self.folder.with_name(f".{self.folder.name}.lock")


class Installed(FileRecord, frozen=True, tag="engine-environment"):
    """``ferrule``: the version that was put into it, and ``digest`` of its files. ``found``: what the probe printed."""

    name: str
    version: str
    ferrule: str
    digest: str
    python: str
    found: dict[str, str]


def own_version() -> str:
    return version_of("ferrule") or "0+unknown"


def interpreter() -> str:
    """The version of Python, as far as compiled modules are made for it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def python_of(environment: Environment) -> Path:
    return environment.folder / "bin" / "python"


def find_environment(environment: Environment) -> Installed | None:
    """What is installed; None where it is not, not wholly, or damaged."""
    try:
        found = read_record(environment.record, Installed)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.version == environment.version and python_of(environment).exists() else None

"""API keys as they are kept: hashed, in a file for its user alone.

A key has 256 random bits, so that its SHA-256 is all that needs to be kept: a slow hash is for what people choose.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from ferrule.config import environment
from ferrule.engine.turn import MOST_PRIORITY
from ferrule.errors import ConfigError
from ferrule.files import FileRecord, locked, read_record, state_directory, write_record
from ferrule.units import parse_seconds

PREFIX = "fr-"
ONE_KEY = "api-key"
"""Name of the key that a server was given by its option or variable."""
SHOWN_CHARACTERS = 8
"""Of a key, by which it is recognised in lists: 30 of its 256 bits."""
MOST_KEYS = 1000
"""Each request is compared with all of them."""
LOCK_SECONDS = 5.0

KeyName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Limit = Annotated[int, msgspec.Meta(ge=1)]
Priority = Annotated[int, msgspec.Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]


class ApiKey(msgspec.Struct, frozen=True):
    """One key. ``digest``: its SHA-256 as hexadecimal letters; ``shown``: how it begins; times in seconds since 1970.

    ``models``: names of those that it may use; None: all. A limit that is None is none. ``priority``: of
    its requests, which may ask for a later one (a higher number) only.
    """

    name: KeyName
    digest: str
    shown: str
    created: float
    models: tuple[str, ...] | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    concurrent: Limit | None = None
    expires: float | None = None
    priority: Priority = 0


class KeysFile(FileRecord, frozen=True, tag="api-keys"):
    keys: tuple[ApiKey, ...] = ()


def keys_path() -> Path:
    """``$FERRULE_KEYS_FILE``, or ``api-keys.json`` in the state directory."""
    told = environment().get("FERRULE_KEYS_FILE")
    return Path(told).expanduser() if told else state_directory() / "api-keys.json"


def read_keys(path: Path) -> KeysFile | None:
    """The keys in ``path``; None where it is not there. Raises `ConfigError` for a file that cannot be used."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"others may read {path}, which holds the API keys: chmod 600 {path}")
        return read_record(path, KeysFile)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"the API keys in {path} cannot be read: {error}; remove the file and create the keys again"
        ) from None


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def add_key(path: Path, key: ApiKey) -> None:
    """Raises `ConfigError` where there is one of its name, or too many."""

    if key.name == ONE_KEY:
        raise ConfigError(f"the name {ONE_KEY!r} is that of --api-key in the request log; choose another")

    def added(file: KeysFile) -> KeysFile:
        if any(each.name == key.name for each in file.keys):
            raise ConfigError(f"there is a key {key.name!r}: revoke it first (ferrule keys revoke {key.name})")
        if len(file.keys) >= MOST_KEYS:
            raise ConfigError(f"there are {MOST_KEYS} keys, the most that are kept; revoke one first")
        return KeysFile((*file.keys, key))

    _change(path, added)


def remove_key(path: Path, name: str) -> None:
    """Raises `ConfigError` where there is none of that name."""

    def removed(file: KeysFile) -> KeysFile:
        kept = tuple(each for each in file.keys if each.name != name)
        if len(kept) == len(file.keys):
            raise ConfigError(f"there is no key {name!r} in {path}; ferrule keys list")
        return KeysFile(kept)

    _change(path, removed)


def _change(path: Path, change: Callable[[KeysFile], KeysFile]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock"), LOCK_SECONDS):
            write_record(path, change(read_keys(path) or KeysFile()), private=True)
    except (OSError, TimeoutError) as error:
        raise ConfigError(f"the API keys in {path} cannot be changed: {error}") from None


def expiry(text: str, now: float) -> float:
    """``30d`` or ``12h`` from ``now``, the beginning of a day (``2027-01-31``, UTC), or a time; in seconds since 1970.

    Raises `ConfigError` for anything else, and for what is over."""
    try:
        when = datetime.fromisoformat(text)
        found = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        try:
            found = now + parse_seconds(text)
        except ConfigError:
            raise ConfigError(f"--expires {text}: write for example 30d, 12h or 2027-01-31") from None
    if found <= now:
        raise ConfigError(f"--expires {text}: that is over")
    return found

"""Changes of clients' settings files: what they would be, writing them, and taking that back."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ferrule.cli.connect import jsonc, toml_text
from ferrule.cli.connect.edits import Edit, merged
from ferrule.errors import ConfigError
from ferrule.files import FileRecord, read_record, state_directory, write_record

MOST_BYTES: Final = 8 << 20
PRIVATE: Final = 0o600
_SECRET: Final = re.compile(
    r"""((?:api[-_]?key|token|secret|password)["']?\s*[:=]\s*["']?)(?!none\b|true\b|false\b|null\b|[{$])([^"'\s,]+)""",
    re.IGNORECASE,
)


class Backup(FileRecord, frozen=True, tag="connect-backup"):
    """What a settings file was before Ferrule wrote it. ``before``: None where there was none. ``written``: digest of
    what Ferrule wrote. ``folders``: those that had to be made, the innermost first."""

    path: str
    before: bytes | None
    mode: int
    written: str
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """Of the file ``path``, which may be a link to it. None: there is no such file."""

    path: Path
    before: bytes | None
    after: bytes | None

    def diff(self) -> str:
        """Unified diff, without the secrets of the file."""
        name = str(self.path)
        lines = difflib.unified_diff(_lines(self.before), _lines(self.after), name, name, lineterm="")
        return "\n".join(masked(line) for line in lines)


def masked(line: str) -> str:
    """``line`` with what looks like the value of a key or password cut to its first letters."""
    return _SECRET.sub(lambda found: f"{found[1]}{short(found[2])}", line)


def short(secret: str) -> str:
    """As much of ``secret`` as may be shown."""
    return f"{secret[:3]}…" if len(secret) >= 12 else "…"


def _lines(data: bytes | None) -> list[str]:
    return (data or b"").decode(errors="replace").splitlines()


def change(path: Path, kind: str, edits: Sequence[Edit]) -> Change:
    """The change that ``edits`` make to a file of ``kind`` (json, toml, yaml). Raises `ConfigError` for one that cannot
    be read, or cannot be edited without losing something."""
    before = _content(path)
    try:
        text = (before or b"").decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: byte {error.start} is not UTF-8; nothing was changed") from None
    read, edited = _format(kind)
    newline = "\r\n" if 0 < text.count("\n") == text.count("\r\n") else "\n"
    plain = text.replace(newline, "\n")
    try:
        wanted = merged(read(plain), edits)
        made = edited(plain, edits)
    except (ConfigError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}; nothing was changed: mend it, or make the change by hand") from None
    if not _is(read, made, wanted):
        raise ConfigError(f"{path} is written in a way that cannot be edited safely; make the change by hand")
    return Change(path, before, made.replace("\n", newline).encode())


def fresh(kind: str, edits: Sequence[Edit]) -> str:
    """A file of ``kind`` that has nothing but ``edits``."""
    return _format(kind)[1]("", edits).rstrip()


def _is(read: Callable[[str], Any], text: str, wanted: Any) -> bool:
    try:
        return bool(read(text) == wanted)
    except ConfigError:
        return False


def _format(kind: str) -> tuple[Callable[[str], Any], Callable[[str, Sequence[Edit]], str]]:
    if kind == "yaml":
        from ferrule.cli.connect import yaml_text

        return yaml_text.read, yaml_text.edited
    module = toml_text if kind == "toml" else jsonc
    return module.read, module.edited


def write(client: str, wanted: Change) -> None:
    """Make the change, and keep what was there: that of before the first one, as long as nobody else has changed the
    file since."""
    assert wanted.after is not None
    kept = _backup(client)
    path = wanted.path.resolve()
    if kept is None or kept.path != str(path) or wanted.before is None or kept.written != _digest(wanted.before):
        folders = [str(each) for each in path.parents if not each.exists()]
        kept = Backup(str(path), wanted.before, _mode(path), "", tuple(folders))
    _save(client, msgspec.structs.replace(kept, written=_digest(wanted.after)))
    _replace(
        path, wanted.before, wanted.after, PRIVATE if _secrets(wanted.after) - _secrets(wanted.before) else _mode(path)
    )


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777 if path.exists() else PRIVATE


def _secrets(data: bytes | None) -> set[str]:
    return {found[2] for found in _SECRET.finditer((data or b"").decode())}


def undoing(client: str) -> tuple[Change, bool]:
    """The change that takes ours back, and whether the file is as we left it. Raises `ConfigError` where nothing was
    written."""
    kept = _backup(client)
    if kept is None:
        raise ConfigError(f"nothing was written for {client}, so there is nothing to undo")
    now = _content(Path(kept.path))
    return Change(Path(kept.path), now, kept.before), now is not None and _digest(now) == kept.written


def undo(client: str, wanted: Change) -> None:
    """Restore what was there before: contents, mode, and that there was no such file or folder."""
    kept = _backup(client)
    assert kept is not None
    if wanted.after is not None:
        _replace(wanted.path, wanted.before, wanted.after, kept.mode)
    else:
        wanted.path.unlink(missing_ok=True)
        for folder in kept.folders:
            try:
                Path(folder).rmdir()
            except OSError:  # there is something else in it by now
                break
    _place(client).unlink()


def _replace(path: Path, before: bytes | None, after: bytes, mode: int) -> None:
    """In one go, unless the file is not as it was any more."""
    if _content(path) != before:
        raise ConfigError(f"{path} was changed meanwhile; nothing was written: try again")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.ferrule")
        fresh.unlink(missing_ok=True)
        fresh.touch(PRIVATE, exist_ok=False)
        fresh.write_bytes(after)
        fresh.chmod(mode)
        fresh.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None


def _content(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path} is larger than any settings are ({MOST_BYTES >> 20} MiB)")
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _place(client: str) -> Path:
    return state_directory() / "connect" / f"{client}.json"


def _backup(client: str) -> Backup | None:
    try:
        return read_record(_place(client), Backup, most=2 * MOST_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{_place(client)}, which keeps what to restore, cannot be read: {error}") from None


def _save(client: str, backup: Backup) -> None:
    """For this user alone: settings have keys."""
    place = _place(client)
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.parent.chmod(0o700)
        write_record(place, backup)
    except OSError as error:
        raise ConfigError(f"{place} cannot be written: {error.strerror or error}; nothing was changed") from None

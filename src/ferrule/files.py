"""Files that several processes share: where the user's cache is, locks that die with their holders, records of JSON.

Locks are flock's own, not filelock's: a child process must be able to inherit one (`hold`), and one kind is enough.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ferrule.config import environment

MOST_RECORD_BYTES = 16 << 20
"""Of a file that holds one record: more than any of ours has."""
_POLL_SECONDS = 0.01
_R = TypeVar("_R", bound="FileRecord")


class FileRecord(msgspec.Struct, frozen=True, tag_field="kind"):
    """Contents of a file of JSON. The ``tag`` of each class keeps its files from being taken for those of another.

    Earlier versions wrote no tags: a file without one counts as what it is read as.
    """


def cache_directory() -> Path:
    """The platform's for this user, on Linux ``~/.cache/ferrule`` (``$XDG_CACHE_HOME`` counts); it need not exist.

    Raises `RuntimeError` for a user without a home.
    """
    from platformdirs import user_cache_path

    return _with_home(user_cache_path("ferrule", appauthor=False))


def state_directory() -> Path:
    """``$FERRULE_STATE``, or the platform's for this user, on Linux ``~/.local/state/ferrule`` (``$XDG_STATE_HOME``
    counts); it need not exist. Raises `RuntimeError` for a user without a home."""
    told = environment().get("FERRULE_STATE")
    if told:
        return Path(told)
    from platformdirs import user_state_path

    return _with_home(user_state_path("ferrule", appauthor=False))


def data_directory() -> Path:
    """The platform's for this user, on Linux ``~/.local/share/ferrule`` (``$XDG_DATA_HOME`` counts); it need not exist.

    Raises `RuntimeError` for a user without a home.
    """
    from platformdirs import user_data_path

    return _with_home(user_data_path("ferrule", appauthor=False))


def _with_home(path: Path) -> Path:
    if path.parts[0] == "~":  # platformdirs leaves it there for a user without a home
        raise RuntimeError("this user has no home directory; set HOME")
    return path


def runtime_directory(name: str) -> Path:
    """``$XDG_RUNTIME_DIR/ferrule/NAME`` or ``/tmp/ferrule-UID/NAME``, made if it is not there: for this user alone, and
    for what need not outlive a start of the machine. Raises `PermissionError` if others can change it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) / "ferrule" if runtime else Path(tempfile.gettempdir()) / f"ferrule-{os.getuid()}"
    for path in (base, base / name):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(
                f"{path} must be a directory of this user alone (mode 700); remove it, or set XDG_RUNTIME_DIR"
            )
    return base / name


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made if missing); the kernel drops it if this process dies.

    Raises `TimeoutError` if another process holds it for ``timeout`` seconds, and `OSError` where ``path`` cannot be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if not _lock_within(file.fileno(), timeout):
            raise TimeoutError(f"another process has held {path} for {timeout:g} s; wait for it or end it")
        yield


def hold(path: Path, seconds: float) -> int | None:
    """Take the lock ``path`` (made if missing); returns its descriptor, held as well by each process that inherits it,
    until the last of them dies. None if another process has it for longer than ``seconds``. Raises `OSError`."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if _lock_within(lock, seconds):
        return lock
    os.close(lock)
    return None


def held(path: Path) -> bool:
    """Whether a process lives that has the lock ``path`` by `hold`."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def delete_oldest(root: Path, keep: Path, lock: str, enough: Callable[[int], bool]) -> None:
    """Delete directories of files in ``root`` but ``keep``, the one that changed first before others, until ``enough``
    says so of the bytes that all of them take. One whose file ``lock`` a process has locked stays."""
    others: list[tuple[float, int, Path]] = []
    total = 0
    for path in root.iterdir() if root.is_dir() else ():
        with suppress(OSError):
            used = sum(file.stat().st_size for file in path.iterdir())
            total += used
            if path != keep:
                others.append((path.stat().st_mtime, used, path))
    for _, used, path in sorted(others):
        if enough(total):
            return
        with suppress(OSError):
            ours = hold(path / lock, 0)
            if ours is None:
                continue
            try:
                shutil.rmtree(path)
                total -= used
            finally:
                os.close(ours)


def read_number(path: Path) -> int | None:
    """The whole number that a file of the kernel holds; None where it is not there, or holds a word such as "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def read_record(path: Path, kind: type[_R], *, most: int = MOST_RECORD_BYTES) -> _R:
    """Contents of a file; see `decode_record`. Raises `OSError`, too."""
    with path.open("rb") as file:
        return decode_record(file.read(most + 1), kind, most=most)


def decode_record(data: bytes | str, kind: type[_R], *, most: int = MOST_RECORD_BYTES) -> _R:
    """Contents of a file, as ``kind``. Raises `msgspec.DecodeError` for anything else, and for more than
    ``most`` bytes."""
    if len(data) > most:
        raise msgspec.DecodeError(f"it is longer than {most:,} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except (UnicodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None


def write_record(path: Path, record: FileRecord, *, private: bool = False) -> None:
    """For `read_record`; as `write_whole` does it."""
    write_whole(path, encode_record(record), private=private)


def encode_record(record: FileRecord) -> str:
    """The contents of a record's file, which people can read, too."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Replace what is in ``path`` in one go: no reader sees half of it. For one writer at a time. Raises `OSError`.

    ``private``: only this user may read it."""
    fresh = path.with_name(f".{path.name}.new")  # what a killed process left there is written over
    if private:
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600, exist_ok=False)
    fresh.write_text(text)
    fresh.replace(path)


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when ``path`` is written or replaced; None where it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _lock_within(lock: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _try_lock(lock, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

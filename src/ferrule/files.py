"""Files that several processes share: where the user's cache is, a lock that dies with its holder, whole contents."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_SECONDS = 0.01


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/ferrule``, by default ``~/.cache/ferrule``; it need not exist.

    Raises `RuntimeError` for a user without a home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrule"


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
    deadline = time.monotonic() + timeout
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another process has held {path} for {timeout:g} s; wait for it or end it"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield


def write_whole(path: Path, text: str) -> None:
    """Replace what is in ``path`` in one go: nobody reads half of it. For one writer at a time. Raises `OSError`."""
    fresh = path.with_name(f".{path.name}.new")  # what a killed process left there is written over
    fresh.write_text(text)
    fresh.replace(path)

"""Files that several processes share: where the user's cache is, a lock that dies with its holder, whole contents."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.01


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/ferrule``, by default ``~/.cache/ferrule``; it need not exist.

    Raises `RuntimeError` for a user without a home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrule"


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

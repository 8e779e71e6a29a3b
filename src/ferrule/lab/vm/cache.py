"""Make a directory once, whoever asks first, and never show it half made."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ferrule.errors import LabError

_POLL_SECONDS = 0.1


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/ferrule/vm``, by default ``~/.cache/ferrule/vm``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrule" / "vm"


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made if missing); the kernel drops it if this process dies.

    Raises `LabError` if another process holds it for ``timeout`` seconds.
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
                    raise LabError(
                        f"another process has held {path} for {timeout:g} s; wait for it or end it"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield


def made_once(directory: Path, make: Callable[[Path], None], *, timeout: float = 900) -> Path:
    """``directory``, made by ``make`` if it is not there yet.

    ``make`` fills a directory beside it that becomes ``directory`` when it returns, so that a failure or a kill leaves
    nothing. Other processes that want the same one wait up to ``timeout`` seconds.
    """
    if directory.is_dir():
        return directory
    with locked(directory.with_name(f".{directory.name}.lock"), timeout):
        if directory.is_dir():
            return directory
        for left in directory.parent.glob(f".{directory.name}.new-*"):
            shutil.rmtree(left)  # of a process that was killed: we hold the lock
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.new-", dir=directory.parent) as fresh:
            filled = Path(fresh) / "made"
            filled.mkdir()
            make(filled)
            filled.rename(directory)
    return directory

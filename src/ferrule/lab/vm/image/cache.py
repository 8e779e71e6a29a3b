"""Make a directory once among processes, and never show it half made."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ferrule import files
from ferrule.errors import LabError


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/ferrule/vm``, by default ``~/.cache/ferrule/vm``."""
    return files.cache_directory() / "vm"


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """`ferrule.files.locked`, but raises `LabError` if another process holds it for ``timeout`` seconds."""
    with ExitStack() as held:
        try:
            held.enter_context(files.locked(path, timeout))
        except TimeoutError as error:
            raise LabError(str(error)) from None
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

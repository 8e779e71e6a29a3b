"""Blocks of the prefix cache on this rank's disk: a file for each, written by a thread of its own.

Files hold what prompts and answers were made into, in full: they are for this user alone. One that is cut short,
damaged or of something else is deleted when it is read. A directory is one rank's part of one model, and locked while
that runs.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from ferrule.engine.rank.cache.prefix import KEY_BYTES
from ferrule.files import delete_oldest, hold

log = logging.getLogger(__name__)

MAGIC = b"ferrule block 1\n"
"""The number is the version of what follows: a digest of the rest, and the rest."""
DIGEST_BYTES = 16
QUEUE_BYTES = 256 << 20
"""That may wait to be written; blocks beyond are not, so that a slow disk takes no memory."""
_LOCK = ".lock"
_FRESH = ".new"


class BlockFiles:
    """Files of ``path``, by key; each of ``block_bytes`` beside its head. Raises `OSError` where the directory cannot
    be used, `BlockingIOError` where another rank uses it."""

    def __init__(self, path: Path, block_bytes: int) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        self.path, self._bytes = path, block_bytes
        lock = hold(path / _LOCK, 0)
        if lock is None:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
        self._lock = lock
        self._waiting: deque[tuple[bytes, bytes | None]] = deque()
        self._held = 0
        self._changed = threading.Condition()
        self._closed = self._failed = False
        self._thread = threading.Thread(target=self._write_all, name="ferrule-blocks", daemon=True)
        self._thread.start()

    def found(self) -> list[bytes]:
        """Those of the files that are there, those used least lately first. What is no block is deleted."""
        files: list[tuple[float, bytes]] = []
        for file in self.path.iterdir():
            with suppress(OSError):
                key, stat = _key_of(file.name), file.stat()
                if key is not None and stat.st_size == len(MAGIC) + DIGEST_BYTES + self._bytes:
                    files.append((stat.st_mtime, key))
                elif file.name != _LOCK:
                    file.unlink()
        return [key for _, key in sorted(files)]

    @property
    def has_room(self) -> bool:
        """Whether another block may wait to be written."""
        with self._changed:
            return self._held + self._bytes <= QUEUE_BYTES

    def write(self, key: bytes, data: bytes) -> None:
        """Have ``data`` written, where there is room. What is not is missing when it is to be read."""
        with self._changed:
            if self._held + len(data) <= QUEUE_BYTES:
                self._held += len(data)
                self._waiting.append((key, data))
                self._changed.notify_all()

    def forget(self, key: bytes) -> None:
        """Have a file deleted, if there is one."""
        with self._changed:
            self._waiting.append((key, None))
            self._changed.notify_all()

    def read(self, key: bytes) -> bytes | None:
        """What was written under ``key``; None where that is not there, or not as it was written."""
        file = self._file(key)
        with self._changed:
            for waiting, data in reversed(self._waiting):
                if waiting == key:
                    return data
        try:
            found = file.read_bytes()
        except OSError:
            return None
        head, content = found[: len(MAGIC) + DIGEST_BYTES], found[len(MAGIC) + DIGEST_BYTES :]
        if len(content) != self._bytes or head != _head(key, content):
            log.warning("%s is not what was written there; it is deleted", file)
            with suppress(OSError):
                file.unlink()
            return None
        with suppress(OSError):
            os.utime(file)
        return content

    def flush(self) -> None:
        """Wait until all is written that waits for it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._closed)

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        os.close(self._lock)

    def _file(self, key: bytes) -> Path:
        return self.path / key.hex()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                key, data = self._waiting[0]
            try:
                self._write(key, data)
            except OSError as error:
                if not self._failed:
                    log.warning("blocks of the prefix cache cannot be written to %s: %s", self.path, error)
                self._failed = True
            with self._changed:
                self._waiting.popleft()
                self._held -= 0 if data is None else len(data)
                self._changed.notify_all()

    def _write(self, key: bytes, data: bytes | None) -> None:
        file = self._file(key)
        if data is None:
            file.unlink(missing_ok=True)
            return
        fresh = file.with_suffix(_FRESH)
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(_head(key, data))
            stream.write(data)
        fresh.replace(file)


def make_room(root: Path, keep: Path, size: int) -> None:
    """Delete what other models have left below ``root``, the oldest first, until all takes no more than ``size`` bytes.
    Directories that a rank uses stay."""
    delete_oldest(root, keep, _LOCK, lambda used: used <= size)


def _head(key: bytes, data: bytes) -> bytes:
    return MAGIC + blake2b(key + data, digest_size=DIGEST_BYTES).digest()


def _key_of(name: str) -> bytes | None:
    try:
        key = bytes.fromhex(name)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None

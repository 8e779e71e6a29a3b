"""Polling by a background thread of what may block for ever, such as a device driver, with a fallback value."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class Sensor(Generic[T]):
    """``read`` is called in a thread of its own; ``otherwise``: what is told where it fails, or does not answer.

    While it hangs it is not asked again: no threads gather. Not thread-safe itself.
    """

    def __init__(self, name: str, read: Callable[[], T], otherwise: T) -> None:
        self._name, self._read, self._otherwise = name, read, otherwise
        self._thread: threading.Thread | None = None
        self._found = otherwise
        self._hangs = False

    def begin(self) -> None:
        """Start to read, unless it still does."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"sensor {self._name}", daemon=True)
            self._thread.start()

    def value(self, deadline: float) -> T:
        """Value read since `begin`, as soon as it is there, or at ``deadline`` (by `time.monotonic`) the other."""
        thread = self._thread
        if thread is None:
            return self._otherwise
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            if not self._hangs:
                log.warning("%s does not answer: reports go without it", self._name)
            self._hangs = True
            return self._otherwise
        self._thread, self._hangs = None, False
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._read()
        except Exception:
            log.exception("%s cannot be read", self._name)
            self._found = self._otherwise

"""A log that stays readable when one thing goes wrong a thousand times in a second."""

from __future__ import annotations

import logging
import time

MOST_KINDS = 256


class RepeatFilter(logging.Filter):
    """Lets a message through once in ``seconds`` and counts it meanwhile.

    Messages are told apart by the first line of their format: arguments do not matter.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key = str(record.msg).partition("\n")[0]
        last, left_out = self._seen.get(key, (-self._seconds, 0))
        now = time.monotonic()
        if now - last < self._seconds:
            self._seen[key] = last, left_out + 1
            return False
        if len(self._seen) >= MOST_KINDS:
            self._seen.clear()
        self._seen[key] = now, 0
        if left_out:
            record.msg = f"{record.msg} ({left_out} more of these in the last {now - last:.0f} s)"
        return True

"""An agent's log, which is moved aside before it grows large; what is printed to standard error goes there, too."""

from __future__ import annotations

import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

MOST_BYTES = 1 << 20
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class _Handler(RotatingFileHandler):
    def doRollover(self) -> None:  # noqa: N802 - named by logging
        super().doRollover()
        if self.stream is not None:
            os.dup2(self.stream.fileno(), 2)


def log_to(file: Path | None, most: int = MOST_BYTES) -> None:
    """Into ``file``, and one older one beside it (``.1``), of ``most`` bytes each; None: to standard error."""
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = _Handler(file, maxBytes=most, backupCount=1, encoding="utf-8")
    logging.basicConfig(level=logging.INFO, format=_FORMAT, handlers=[handler])

"""How much private memory this process holds."""

from __future__ import annotations

from pathlib import Path

import psutil

STATUS = Path("/proc/self/status")


def private_bytes() -> int:
    """Anonymous memory of this process. Pages of mapped files (the checkpoint's, libraries') are the kernel's to
    take back and do not count. Where /proc is not there (macOS), the unique set size."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_full_info().uss)


class PeakMemory:
    """The private memory at the start and the highest since, as far as `sample` was called at the right moments."""

    def __init__(self) -> None:
        self.base = self.peak = private_bytes()

    def sample(self) -> None:
        self.peak = max(self.peak, private_bytes())

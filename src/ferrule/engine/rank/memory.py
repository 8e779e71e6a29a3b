"""How much private memory this process holds."""

from __future__ import annotations

from ferrule.process.memory import private_bytes


class PeakMemory:
    """The private memory at the start and the highest since, as far as `sample` was called at the right moments."""

    def __init__(self) -> None:
        self.base = self.peak = private_bytes()

    def sample(self) -> None:
        self.peak = max(self.peak, private_bytes())

"""Pieces of device tensors and the pinned host memory that stands for them on the wire.

The device copies in the order of its other work, so the host waits for copies to the host only, and whatever the device
is given after a piece was brought home sees it. While one piece is on the wire the next ones are copied.
"""

from __future__ import annotations

from torch import Tensor

from ferrule.staging.copier import Copier, Event

PIECE_BYTES = 1 << 20
"""Long enough that starting a copy and a message is little beside it."""


class Piece:
    """``device``: a tensor, or a part of one. ``host``: pinned memory of its shape."""

    def __init__(self, copier: Copier, values: Tensor) -> None:
        self.device = values.detach()
        self.host = copier.pinned(tuple(values.shape), values.dtype)
        self._copier = copier
        self._there: Event | None = None
        self._back: Event | None = None

    def leave(self) -> Piece:
        """Start the copy to the host."""
        self.host.copy_(self.device, non_blocking=True)
        self._there = self._copier.record()
        return self

    def arrived(self) -> Tensor:
        """The host's memory, when it has what the device had."""
        if self._there is not None:
            self._there.synchronize()
        return self.host

    def home(self) -> Tensor:
        """Start the copy back, which what is started next on the current stream of the device comes after. The second
        time, on whichever stream, that is all it does."""
        if self._back is None:
            self.device.copy_(self.host, non_blocking=True)
            self._back = self._copier.record()
        else:
            self._copier.follow(self._back)
        return self.device


def staged(copier: Copier, values: Tensor) -> Piece:
    """``values`` on its way to the host."""
    return Piece(copier, values).leave()


def spans(count: int, element_bytes: int) -> list[slice]:
    """Cuts of ``count`` elements into pieces."""
    step = max(1, PIECE_BYTES // element_bytes)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]

"""Pieces of device tensors and the host memory that stands for them on the wire: pinned, or where the host sees the
device's, that itself.

The device copies in the order of its other work, so the host waits for copies to the host only, and whatever the device
is given after a piece was brought home sees it. While one piece is on the wire the next ones are copied.
"""

from __future__ import annotations

from torch import Tensor

from ferrule.staging.copier import Copier, Event

PIECE_BYTES = 1 << 20
"""Long enough that starting a copy and a message is little beside it."""


class Piece:
    """``device``: a tensor, or a part of one. ``host``: memory of its shape. ``in_place``: that is the device's own,
    and there are no copies; not with ``apart``."""

    def __init__(self, copier: Copier, values: Tensor, *, apart: bool = False) -> None:
        self.device = values.detach()
        seen = None if apart else copier.host_view(self.device)
        self.in_place = seen is not None
        self.host = copier.pinned(tuple(values.shape), values.dtype) if seen is None else seen
        self._copier = copier
        self._there: Event | None = copier.record() if self.in_place else None
        self._back: Event | None = None

    def leave(self) -> Piece:
        """Start the copy to the host."""
        if not self.in_place:
            self.host.copy_(self.device, non_blocking=True)
            self._there = self._copier.record()
        return self

    def arrived(self) -> Tensor:
        """The host's memory, when it has what the device had, or may be written to."""
        if self._there is not None:
            self._there.synchronize()
        return self.host

    def home(self) -> Tensor:
        """Start the copy back, which what is started next on the current stream of the device comes after. The second
        time, on whichever stream, that is all it does."""
        if self.in_place:
            return self.device
        if self._back is None:
            self.device.copy_(self.host, non_blocking=True)
            self._back = self._copier.record()
        else:
            self._copier.follow(self._back)
        return self.device


def staged(copier: Copier, values: Tensor, *, apart: bool = False) -> Piece:
    """``values`` on its way to the host."""
    return Piece(copier, values, apart=apart).leave()


def spans(count: int, element_bytes: int) -> list[slice]:
    """Cuts of ``count`` elements into pieces."""
    step = max(1, PIECE_BYTES // element_bytes)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]

"""Collectives of a stage's tensors on a device: through pinned host memory, over the fabric, and back; or, where the
host sees the device's memory, in place.

Where all ranks do so, large tensors are reduced in pieces.
"""

from __future__ import annotations

from torch import Tensor

from ferrule.engine.devices.device import CopyingDevice, RankGroup
from ferrule.staging import Piece, spans, staged


class StagedGroup:
    """`RankGroup` for tensors that ``device`` reaches and ``ranks``, a group for host tensors, does not.

    ``in_pieces``: all ranks reduce large tensors so."""

    def __init__(self, ranks: RankGroup, device: CopyingDevice, *, in_pieces: bool) -> None:
        self._ranks, self._device, self._in_pieces = ranks, device, in_pieces
        self.rank, self.size = ranks.rank, ranks.size

    def all_reduce(self, x: Tensor, /) -> Tensor:
        flat = x.view(-1)
        cuts = spans(len(flat), flat.element_size()) if self._in_pieces else [slice(None)]
        if (line := self._device.host_view(flat)) is not None:
            self._device.record().synchronize()
            for cut in cuts:  # as many messages as of ranks that copy
                self._ranks.all_reduce(line[cut])
            return x
        for piece in [staged(self._device, flat[cut]) for cut in cuts]:
            self._ranks.all_reduce(piece.arrived())
            piece.home()
        return x

    def all_gather(self, x: Tensor, out: Tensor | None = None, /) -> Tensor:
        joined, given = self._joined(x, out), staged(self._device, x)
        self._ranks.all_gather(given.arrived(), joined.host)
        return joined.home()

    def gather(self, x: Tensor, root: int, out: Tensor | None = None, /) -> Tensor | None:
        joined, given = self._joined(x, out) if self.rank == root else None, staged(self._device, x)
        self._ranks.gather(given.arrived(), root, None if joined is None else joined.host)
        return None if joined is None else joined.home()

    def _joined(self, x: Tensor, out: Tensor | None) -> Piece:
        """Memory for all ranks' ``x``. It comes before what is waited for, by which the host may write it, too."""
        if out is None:
            out = self._device.empty((self.size * x.shape[0], *x.shape[1:]), x.dtype)
        return Piece(self._device, out)

    def send(self, x: Tensor, dst: int, /) -> None:
        self._ranks.send(staged(self._device, x).arrived(), dst)

    def recv(self, x: Tensor, src: int, /) -> Tensor:
        piece = Piece(self._device, x)
        self._ranks.recv(piece.arrived(), src)
        return piece.home()

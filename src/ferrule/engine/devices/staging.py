"""Collectives of a stage's tensors in a device's own memory: through pinned host memory, over the fabric, and back;
messages straight from and to that memory, where an RDMA adapter can.

Where all ranks do so, large tensors are reduced in pieces.
"""

from __future__ import annotations

from torch import Tensor

from ferrule.engine.devices.device import CopyingDevice, RankGroup
from ferrule.fabric import Group
from ferrule.staging import DirectMessages, DirectTensor, Piece, spans, staged


class StagedGroup:
    """`RankGroup` for tensors that ``device`` reaches and ``ranks``, a group for host tensors, does not.

    ``in_pieces``: all ranks reduce large tensors so."""

    def __init__(self, ranks: RankGroup, device: CopyingDevice, *, in_pieces: bool) -> None:
        self._ranks, self._device, self._in_pieces = ranks, device, in_pieces
        self._direct = DirectMessages(ranks) if isinstance(ranks, Group) else None
        self.rank, self.size = ranks.rank, ranks.size

    def all_reduce(self, x: Tensor, /) -> Tensor:
        flat = x.view(-1)
        parts = [flat[span] for span in spans(len(flat), flat.element_size())] if self._in_pieces else [x]
        for piece in [staged(self._device, part) for part in parts]:
            self._ranks.all_reduce(piece.arrived())
            piece.home()
        return x

    def all_gather(self, x: Tensor, /) -> Tensor:
        return self._device.upload(self._ranks.all_gather(self._device.download(x)))

    def gather(self, x: Tensor, root: int, /) -> Tensor | None:
        joined = self._ranks.gather(self._device.download(x), root)
        return None if joined is None else self._device.upload(joined)

    def send(self, x: Tensor, dst: int, /) -> None:
        if (direct := self._find(x, dst)) is not None:
            direct.send()
        else:
            self._ranks.send(self._device.download(x), dst)

    def recv(self, x: Tensor, src: int, /) -> Tensor:
        if (direct := self._find(x, src)) is not None:
            receipt = direct.receive()
            receipt.start()
            return receipt.home()
        piece = Piece(self._device, x)
        self._ranks.recv(piece.host, src)
        return piece.home()

    def _find(self, x: Tensor, peer: int) -> DirectTensor | None:
        return None if self._direct is None else self._direct.find(x, peer, self._device)

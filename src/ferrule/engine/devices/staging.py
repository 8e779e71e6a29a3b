"""Collectives of a stage's tensors in a device's own memory: through pinned host memory, over the fabric, and back.

Where all ranks do so, large tensors are reduced in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from ferrule.engine.devices.device import CopyingDevice, RankGroup
from ferrule.engine.devices.script import Script
from ferrule.staging import Piece, spans, staged


class StagedGroup:
    """`RankGroup` for tensors that ``device`` reaches and ``ranks``, a group for host tensors, does not.

    ``in_pieces``: all ranks reduce large tensors so."""

    def __init__(self, ranks: RankGroup, device: CopyingDevice, *, in_pieces: bool) -> None:
        self._ranks, self._device, self._in_pieces = ranks, device, in_pieces
        self.rank, self.size = ranks.rank, ranks.size
        self._script: Script | None = None

    @contextmanager
    def in_script(self, script: Script) -> Iterator[None]:
        """Make what is put together meanwhile a part of ``script``; tensors of all sizes go whole."""
        self._script = script
        try:
            yield
        finally:
            self._script = None

    def all_reduce(self, x: Tensor, /) -> Tensor:
        if self._script is not None:
            self._script.exchange(x, x, lambda out, _: self._ranks.all_reduce(out))
            return x
        flat = x.view(-1)
        parts = [flat[span] for span in spans(len(flat), flat.element_size())] if self._in_pieces else [x]
        for piece in [staged(self._device, part) for part in parts]:
            self._ranks.all_reduce(piece.arrived())
            piece.home()
        return x

    def all_gather(self, x: Tensor, /) -> Tensor:
        if self._script is not None:
            joined = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
            self._script.exchange(x, joined, lambda out, home: _fill(home, self._ranks.all_gather(out)))
            return joined
        return self._device.upload(self._ranks.all_gather(self._device.download(x)))

    def gather(self, x: Tensor, root: int, /) -> Tensor | None:
        if self._script is not None:
            whole = x.new_empty((self.size * x.shape[0], *x.shape[1:])) if root == self.rank else None
            self._script.exchange(x, whole, lambda out, home: _fill(home, self._ranks.gather(out, root)))
            return whole
        joined = self._ranks.gather(self._device.download(x), root)
        return None if joined is None else self._device.upload(joined)

    def send(self, x: Tensor, dst: int, /) -> None:
        self._ranks.send(self._device.download(x), dst)

    def recv(self, x: Tensor, src: int, /) -> Tensor:
        piece = Piece(self._device, x)
        self._ranks.recv(piece.host, src)
        return piece.home()


def _fill(home: Tensor | None, values: Tensor | None) -> None:
    if home is not None and values is not None:
        home.copy_(values)

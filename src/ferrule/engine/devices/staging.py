"""Collectives of a stage's tensors on a device: through pinned host memory, over the fabric, and back; or, where the
host sees the device's memory, in place. Messages go straight from and to that memory, where an RDMA adapter can.

Where all ranks do so, large tensors are reduced in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from ferrule.engine.devices.device import CopyingDevice, RankGroup
from ferrule.engine.devices.script import Script
from ferrule.fabric import Group
from ferrule.staging import DirectMessages, DirectTensor, Piece, spans, staged


class StagedGroup:
    """`RankGroup` for tensors that ``device`` reaches and ``ranks``, a group for host tensors, does not.

    ``in_pieces``: all ranks reduce large tensors so."""

    def __init__(self, ranks: RankGroup, device: CopyingDevice, *, in_pieces: bool) -> None:
        self._ranks, self._device, self._in_pieces = ranks, device, in_pieces
        self._direct = DirectMessages(ranks) if isinstance(ranks, Group) else None
        self.rank, self.size = ranks.rank, ranks.size
        self._script: Script | None = None

    def renew(self) -> None:
        """The ranks have other connections now: memory is registered anew for messages that go straight from it."""
        self._direct = DirectMessages(self._ranks) if isinstance(self._ranks, Group) else None

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
        if self._script is not None:
            made = self._made(x, out)
            self._script.exchange(x, made, self._ranks.all_gather)
            return made
        joined, given = Piece(self._device, self._made(x, out)), staged(self._device, x)
        self._ranks.all_gather(given.arrived(), joined.host)
        return joined.home()

    def gather(self, x: Tensor, root: int, out: Tensor | None = None, /) -> Tensor | None:
        made = self._made(x, out) if self.rank == root else None
        if self._script is not None:
            self._script.exchange(x, made, lambda sent, home: self._ranks.gather(sent, root, home))
            return made
        joined, given = None if made is None else Piece(self._device, made), staged(self._device, x)
        self._ranks.gather(given.arrived(), root, None if joined is None else joined.host)
        return None if joined is None else joined.home()

    def _made(self, x: Tensor, out: Tensor | None) -> Tensor:
        """Memory for all ranks' ``x``. It comes before what is waited for, by which the host may write it, too."""
        return self._device.empty((self.size * x.shape[0], *x.shape[1:]), x.dtype) if out is None else out

    def send(self, x: Tensor, dst: int, /) -> None:
        if (direct := self._find(x, dst)) is not None:
            direct.send()
        else:
            self._ranks.send(staged(self._device, x).arrived(), dst)

    def recv(self, x: Tensor, src: int, /) -> Tensor:
        if (direct := self._find(x, src)) is not None:
            receipt = direct.receive()
            receipt.start()
            return receipt.home()
        piece = Piece(self._device, x)
        self._ranks.recv(piece.arrived(), src)
        return piece.home()

    def _find(self, x: Tensor, peer: int) -> DirectTensor | None:
        return None if self._direct is None else self._direct.find(x, peer, self._device)

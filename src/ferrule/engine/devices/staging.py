"""Collectives of tensors in a device's own memory: copied to pinned host memory, over the fabric, and back.

The device copies in the order of its other work, so the host waits for copies to the host only. Where all ranks do
so, large tensors are reduced in pieces: while one is on the wire the next ones are copied.
"""

from __future__ import annotations

from torch import Tensor

from ferrule.engine.devices.device import Copier, RankGroup

PIECE_BYTES = 1 << 20
"""Long enough that starting a copy and a message is little beside it."""


class StagedGroup:
    """`RankGroup` for tensors that ``copier`` reaches and ``ranks``, a group for host tensors, does not.

    ``in_pieces``: all ranks reduce large tensors so."""

    def __init__(self, ranks: RankGroup, copier: Copier, *, in_pieces: bool) -> None:
        self._ranks, self._copier, self._in_pieces = ranks, copier, in_pieces
        self.rank, self.size = ranks.rank, ranks.size

    def all_reduce(self, x: Tensor, /) -> Tensor:
        if not self._in_pieces:
            host = self._copier.download(x)
            self._ranks.all_reduce(host)
            return x.copy_(host, non_blocking=True)
        flat = x.view(-1)
        host = self._copier.pinned(tuple(flat.shape), flat.dtype)
        step = max(1, PIECE_BYTES // flat.element_size())
        spans = [slice(start, start + step) for start in range(0, len(flat), step)]
        copied = []
        for span in spans:
            host[span].copy_(flat[span], non_blocking=True)
            copied.append(self._copier.record())
        for span, there in zip(spans, copied, strict=True):
            there.synchronize()
            self._ranks.all_reduce(host[span])
            flat[span].copy_(host[span], non_blocking=True)
        return x

    def all_gather(self, x: Tensor, /) -> Tensor:
        return self._copier.upload(self._ranks.all_gather(self._copier.download(x)))

    def gather(self, x: Tensor, root: int, /) -> Tensor | None:
        joined = self._ranks.gather(self._copier.download(x), root)
        return None if joined is None else self._copier.upload(joined)

    def send(self, x: Tensor, dst: int, /) -> None:
        self._ranks.send(self._copier.download(x), dst)

    def recv(self, x: Tensor, src: int, /) -> Tensor:
        host = self._copier.pinned(tuple(x.shape), x.dtype)
        self._ranks.recv(host, src)
        return x.copy_(host, non_blocking=True)

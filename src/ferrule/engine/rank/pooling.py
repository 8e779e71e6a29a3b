"""Vectors of prompts: their hidden states, pooled piece by piece as they are computed."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ferrule.engine.devices import Device
from ferrule.engine.rank.batch import Batch
from ferrule.model import PoolingMode


@dataclass
class Pool:
    """``vector``: the sum (mean) or the one row of the ``tokens`` so far, in float64."""

    mode: PoolingMode
    vector: NDArray[np.float64] | None = None
    tokens: int = 0


class Pools:
    """Those of the prompts under way, by their sequence."""

    def __init__(self) -> None:
        self._open: dict[int, Pool] = {}

    def begin(self, sequence: int, mode: PoolingMode) -> None:
        self._open[sequence] = Pool(mode)

    def keep(self, sequences: Container[int]) -> None:
        """Forget all others."""
        self._open = {each: pool for each, pool in self._open.items() if each in sequences}

    def add(self, batch: Batch, hidden: Tensor, device: Device) -> dict[int, NDArray[np.float32]]:
        """Take in the hidden states (tokens, width) of ``batch``, on ``device``. Returns by sequence what has been
        pooled of it so far."""
        pieces, end = [], 0
        for span in batch.spans:
            rows = hidden[end : end + span.tokens]
            end += span.tokens
            mode = self._open[span.sequence].mode
            pieces.append(rows.sum(0) if mode == "mean" else rows[0] if mode == "cls" else rows[-1])
        found = {}
        for span, piece in zip(batch.spans, device.download_all(pieces), strict=True):
            pool = self._open[span.sequence]
            if span.seen == 0:  # it may have been dropped from the cache, and begins again
                pool.vector, pool.tokens = None, 0
            row = piece.double().numpy()
            if pool.vector is None or pool.mode == "last":
                pool.vector = row
            elif pool.mode == "mean":
                pool.vector = pool.vector + row
            pool.tokens += span.tokens
            found[span.sequence] = (pool.vector / (pool.tokens if pool.mode == "mean" else 1)).astype(np.float32)
        return found

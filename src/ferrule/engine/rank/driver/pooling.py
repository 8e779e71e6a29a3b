"""Vectors of prompts: their hidden states, pooled piece by piece as they are computed."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ferrule.engine.devices import Device
from ferrule.engine.rank.batch import Batch
from ferrule.model import PoolingMode


@dataclass
class Pool:
    """``vector``: the sum, the largest numbers or the one row of the ``tokens`` so far, in float64."""

    mode: PoolingMode
    vector: NDArray[np.float64] | None = None
    tokens: int = 0

    def piece(self, rows: Tensor) -> Tensor:
        """Of the next tokens' hidden states (tokens, width) what is to be downloaded: (width,)."""
        match self.mode:
            case "last":
                return rows[-1]
            case "cls":
                return rows[0]
            case "max":
                return rows.max(0).values
            case "weighted_mean":
                first = self.tokens + 1
                return torch.arange(first, first + len(rows), dtype=rows.dtype, device=rows.device) @ rows
        return rows.sum(0)

    def add(self, piece: NDArray[np.float64], tokens: int) -> NDArray[np.float64]:
        """Take in the ``piece`` of so many tokens. Returns what has been pooled so far."""
        if self.vector is None or self.mode == "last":
            self.vector = piece
        elif self.mode == "max":
            self.vector = np.maximum(self.vector, piece)
        elif self.mode != "cls":
            self.vector = self.vector + piece
        self.tokens += tokens
        count = self.tokens
        by = {"mean": count, "mean_sqrt_len": math.sqrt(count), "weighted_mean": count * (count + 1) / 2}
        return self.vector / by.get(self.mode, 1)


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
            pool = self._open[span.sequence]
            if span.seen == 0:  # it may have been dropped from the cache, and begins again
                pool.vector, pool.tokens = None, 0
            pieces.append(pool.piece(rows))
        return {
            span.sequence: self._open[span.sequence].add(piece.double().numpy(), span.tokens).astype(np.float32)
            for span, piece in zip(batch.spans, device.download_all(pieces), strict=True)
        }

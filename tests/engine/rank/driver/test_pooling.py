"""Hidden states of prompts, pooled piece by piece."""

from __future__ import annotations

import numpy as np
import torch

from ferrule.engine.devices import open_device
from ferrule.engine.rank.batch import Batch, Kind, Span
from ferrule.engine.rank.driver.pooling import Pools


def test_pieces_make_the_vector_of_the_whole_also_when_they_begin_again() -> None:
    pools, device = Pools(), open_device("cpu", 1)
    hidden = {number: torch.randn(10, 4, generator=torch.Generator().manual_seed(number)) for number in range(6)}
    for number, mode in enumerate(("mean", "last", "cls", "max", "mean_sqrt_len", "weighted_mean")):
        pools.begin(number, mode)  # type: ignore[arg-type]

    def piece(first: int, last: int) -> dict[int, np.ndarray]:
        spans = tuple(Span(number, first, last - first, False) for number in hidden)
        rows = torch.cat([each[first:last] for each in hidden.values()])
        return pools.add(Batch(spans, kind=Kind.EMBED), rows, device)

    piece(0, 4)
    piece(0, 3)  # it was dropped from the cache
    piece(3, 9)
    found = piece(9, 10)
    places = torch.arange(1.0, 11.0)
    right = [hidden[0].mean(0), hidden[1][-1], hidden[2][0], hidden[3].max(0).values]
    right += [hidden[4].sum(0) / 10**0.5, (places[:, None] * hidden[5]).sum(0) / places.sum()]
    for number, vector in found.items():
        assert vector.dtype == np.float32
        np.testing.assert_allclose(vector, right[number].numpy(), rtol=1e-5, atol=1e-6)
    pools.keep({1})
    assert list(pools._open) == [1]

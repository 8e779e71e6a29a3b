"""Codes of a few bits as files have them, against the bits one by one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ferrule.engine.weights.bits import lanes, unpack, unpack_range


def random_bytes(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)


def end_to_end(octets: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    each = np.unpackbits(octets, axis=1, bitorder="little")
    whole = each[:, : each.shape[1] // bits * bits].reshape(len(octets), -1, bits)
    return (whole << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.uint8)


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_end_to_end_along_each_axis(bits: int) -> None:
    for rows, words in ((1, 1), (3, 7), (21, 24)):
        octets = random_bytes(rows, words * 4)
        wanted = end_to_end(octets, bits)
        stored = octets.view(np.uint32)
        assert np.array_equal(unpack(stored, bits), wanted)
        assert np.array_equal(unpack(np.ascontiguousarray(stored.T), bits, axis=0), wanted.T)
        assert np.array_equal(unpack_range(stored, bits, (2, 4)), wanted[:, 2:4])


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [1, 4, 16, 32, 64])
def test_codes_side_by_side_in_bytes(bits: int, width: int) -> None:
    blocks = random_bytes(5, 3 + 2 * width)
    data = blocks[:, 3:].reshape(5, 2, 1, width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    wanted = (data >> shifts & np.uint8((1 << bits) - 1)).reshape(5, -1)
    assert np.array_equal(lanes(blocks[:, 3:], width, bits), wanted)

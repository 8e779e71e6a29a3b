"""Arguments of which the native core refuses to make a group."""

from __future__ import annotations

import socket

import pytest

from ferrule import _native


def test_ranks_on_one_segment_need_its_channels() -> None:
    segment = _native.Segment.create(bytes(16), 2)
    pairs = [socket.socketpair() for _ in range(2)]
    channels = [[None, _native.Channel.tcp(0, 1, [mine.detach()], 7)] for mine, _ in pairs]
    with pytest.raises(ValueError, match="rank 1 is on this rank's segment, but is joined by tcp"):
        _native.Group(0, 7, *channels, segment, [0, 1], 0.0, 0.0)
    for _, theirs in pairs:
        theirs.close()


def test_a_place_beyond_the_segment_is_refused() -> None:
    segment = _native.Segment.create(bytes(16), 2)
    with pytest.raises(ValueError, match="room for 2 ranks only"):
        _native.Group(0, 7, [None], [None], segment, [2], 0.0, 0.0)

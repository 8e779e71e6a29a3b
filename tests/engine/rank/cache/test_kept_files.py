"""Blocks on disk that some rank lacks stay in the room that those of all ranks leave."""

from __future__ import annotations

from ferrule.engine.rank.cache.shared import KeptFiles

A, B, C, D, E = (bytes([number]) * 16 for number in range(5))


def test_what_some_rank_lacks_stays_until_its_room_is_needed() -> None:
    kept = KeptFiles([A, B, C], {B}, 4)
    assert list(kept.over()) == []
    assert list(kept.written(D)) == []
    assert list(kept.written(E)) == [A], "used least lately"
    assert list(kept.written(C)) == [], "now all have it"
    kept.forgotten(B)
    assert list(kept.written(A)) == []


def test_a_smaller_room_is_kept_at_the_start() -> None:
    assert list(KeptFiles([A, B, C], {C}, 1).over()) == [A, B]

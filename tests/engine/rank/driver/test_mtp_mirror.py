"""Blocks of the prefix cache in the cache of the model's own layer: kept and dropped as the model's are."""

from __future__ import annotations

from ferrule.engine.rank.batch import Batch, Kept
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.draft.mirror import Mirror


def kept(mirror: Mirror) -> list[tuple[int, int, int]]:
    return [(each.sequence, each.place, each.block) for each in mirror.take_kept()]


def test_blocks_are_kept_once_they_are_computed() -> None:
    mirror = Mirror()
    assert mirror.told(Batch(kept=(Kept(1, 0, 7), Kept(1, 1, 8)))) == []
    mirror.keep(1, BLOCK)
    assert kept(mirror) == [], "the last token may be computed again"
    mirror.keep(1, 2 * BLOCK)
    assert kept(mirror) == [(1, 0, 7)]
    assert mirror.held((7, 8)) == (7,)
    mirror.keep(1, 2 * BLOCK + 1)
    assert kept(mirror) == [(1, 1, 8)]
    assert mirror.held((7, 8, 9, 7)) == (7, 8)
    mirror.told(Batch(kept=(Kept(2, 0, 7),)))
    mirror.keep(2, 99)
    assert kept(mirror) == [], "an equal one is there"


def test_what_is_gone_is_neither_kept_nor_held() -> None:
    mirror = Mirror()
    mirror.told(Batch(kept=(Kept(1, 0, 7), Kept(1, 1, 8), Kept(1, 2, 9))))
    mirror.keep(1, 3 * BLOCK)
    assert mirror.told(Batch(dropped=(8, 9, 5))) == [8], "9 was not computed, and of 5 nothing was known"
    assert kept(mirror) == [(1, 0, 7)]
    assert mirror.take_dropped() == ()
    mirror.keep(1, 9 * BLOCK)
    assert kept(mirror) == []
    assert mirror.told(Batch(dropped=(7,))) == [7]
    assert mirror.held((7,)) == ()
    assert mirror.take_dropped() == (7,)
    mirror.told(Batch(kept=(Kept(3, 0, 7),)))
    mirror.forget(3)
    mirror.keep(3, 99)
    assert kept(mirror) == []


def test_a_number_is_dropped_before_it_is_kept_anew() -> None:
    mirror = Mirror()
    mirror.told(Batch(kept=(Kept(1, 0, 7),)))
    mirror.keep(1, 99)
    assert kept(mirror) == [(1, 0, 7)]
    mirror.told(Batch(dropped=(7,)))
    mirror.told(Batch(kept=(Kept(2, 0, 7),)))
    mirror.keep(2, 99)
    assert mirror.clash
    assert mirror.take_dropped() == (7,)
    assert not mirror.clash
    assert mirror.told(Batch(dropped=(7,))) == [7]
    assert (kept(mirror), mirror.take_dropped()) == ([], ()), "it never came to be"

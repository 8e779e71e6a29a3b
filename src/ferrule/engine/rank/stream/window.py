"""Plan of what of a rank's weights stays in memory, and how much memory has what is read from disk. Pure.

Layers are needed one after the other, and again: of such an order it does not matter which of them stay, and no
replacement does better than always the same ones (Belady 1966). Those that are read lie as far apart as can be, so that
the disk has a turn while what stays is computed with. Experts are needed as tokens choose: as many as have room stay,
those that were chosen most.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

MOST_SLOTS = 8
"""That layers are read into; more would only take memory from what stays."""
_WORTH = 0.99
"""Another slot must make a step so much shorter at least."""


@dataclass(frozen=True)
class Layers:
    """Bytes, in whole pages. ``dense``: of the parts of layers that all tokens need. ``expert``: of the largest expert,
    and ``experts``: how many there are in all layers, of which a token chooses ``chosen`` of a layer."""

    dense: tuple[int, ...]
    expert: int = 0
    experts: int = 0
    chosen: int = 0


@dataclass(frozen=True)
class Pace:
    """Bytes per second of the ``disk``, and by which ``memory`` is computed with; ``pause``: seconds of a step beside
    its layers."""

    disk: float
    memory: float
    pause: float


@dataclass(frozen=True)
class Window:
    """``read``: parts that are read with every step, in order, into ``slots``. ``experts``: how many of them are in
    memory at once; None: all stay."""

    read: tuple[int, ...] = ()
    slots: int = 0
    experts: int | None = None


def plan_window(layers: Layers, room: int, pace: Pace) -> Window | None:
    """Of layers that take no more than ``room`` bytes; None where that is less than `least_room`."""
    dense = sum(layers.dense)
    if dense + layers.experts * layers.expert <= room:
        return Window()
    at_once = min(layers.experts, layers.chosen) * layers.expert
    if layers.experts and dense + at_once <= room:
        return Window(experts=min(layers.experts, (room - dense) // layers.expert))
    found: list[tuple[float, Window]] = []
    for slots in range(1, min(MOST_SLOTS, len(layers.dense)) + 1):
        read = fewest_read(layers.dense, room - at_once, slots)
        if read is not None:
            seconds = cycle_seconds(layers.dense, frozenset(read), slots, pace)
            found.append((seconds, Window(read, slots, min(layers.experts, layers.chosen) or None)))
    best = found[0] if found else None
    for each in found[1:]:
        if best is not None and each[0] < best[0] * _WORTH:
            best = each
    return None if best is None else best[1]


def least_room(layers: Layers) -> int:
    """Bytes of what is needed at once."""
    return max(layers.dense) + min(layers.experts, layers.chosen) * layers.expert


def fewest_read(dense: Sequence[int], room: int, slots: int) -> tuple[int, ...] | None:
    """As few layers as have to be read where the others and so many slots have ``room``; None where that cannot be."""
    for count in range(slots, len(dense) + 1):
        read = spread(count, len(dense))
        largest = max(dense[index] for index in read)
        if sum(dense) - sum(dense[index] for index in read) + slots * largest <= room:
            return read
    return None


def spread(count: int, among: int) -> tuple[int, ...]:
    """``count`` numbers below ``among``, as far from each other as can be, the last one too from the first."""
    return tuple((place + 1) * among // count - 1 for place in range(count))


def cycle_seconds(dense: Sequence[int], read: Set[int], slots: int, pace: Pace) -> float:
    """Of a step, when many have gone before: each part is read as soon as a slot is free, and computed with when it has
    come."""
    now = disk = began = 0.0
    free, turn = [0.0] * slots, 0
    for _ in range(3):
        began = now
        for layer, size in enumerate(dense):
            if layer in read:
                disk = max(disk, free[turn]) + size / pace.disk
                now = max(now, disk)
            now += size / pace.memory
            if layer in read:
                free[turn] = now
                turn = (turn + 1) % slots
        now += pace.pause
    return now - began

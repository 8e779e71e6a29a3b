"""Hot experts on several devices: which are worth a copy, by the rows that were counted for each.

Whole experts are given out in ranges, by memory and speed. If texts need some of them far more often than others, all
devices wait for the one that has these. As in DeepSeek's load balancer (EPLB, github.com/deepseek-ai/EPLB), copies are
given one by one to experts whose copies have most rows, and to devices with the fewest. Unlike there, ranges stay
where they are, copies only take places that are free, and devices may differ in speed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.model import Range

WORTH = 0.1
"""Copies are made where the slowest device's time for its rows falls by at least this part."""

Owners = tuple[tuple[int, ...], ...]
"""Of each expert, the devices that have it, in rising order; each gets an equal part of its rows."""


def owners_in(held: Sequence[Range]) -> Owners:
    """Without copies: ``held[i]`` are the experts of device i."""
    return tuple((device,) for device, (first, last) in enumerate(held) for _ in range(first, last))


def slowest_rows(rows: Sequence[float], owners: Owners, speeds: Sequence[float]) -> float:
    """The most rows that a device gets, by its speed: ``rows[e]`` are counted for expert e."""
    return max(_loads(rows, owners, speeds))


def choose_copies(
    rows: Sequence[float], held: Sequence[Range], free: Sequence[int], speeds: Sequence[float], worth: float = WORTH
) -> Owners:
    """Owners of a layer's experts, with copies where they are worth it.

    ``rows[e]``: counted for expert e. ``held[i]``: experts of device i; ``free[i]``: how many more its memory has room
    for; ``speeds[i]``: rows in a unit of time. Each copy is the one that leaves least to the slowest device, of such
    to the next, and so on; those that do not help the slowest in the end are left out. If all of them together do not
    take ``worth`` of its time away, there are none. What is given decides the result: all who know it find the same.
    """
    alone = owners_in(held)
    if len(rows) != len(alone):
        raise ValueError(f"rows of {len(rows)} experts were counted, but devices have {len(alone)}")
    owners = best = alone
    room, loads = list(free), _loads(rows, alone, speeds)
    before = least = max(loads)
    while (found := _best_copy(rows, owners, room, speeds, loads)) is not None:
        if found[0] >= sorted(loads, reverse=True):
            break
        _, expert, device = found
        loads = _loads_with(loads, rows[expert], owners[expert], device, speeds)
        owners = _with_copy(owners, expert, device)
        room[device] -= 1
        if max(loads) < least * (1 - 1e-9):  # by more than rounding
            least, best = max(loads), owners
    return best if before and least <= before * (1 - worth) else alone


def _best_copy(
    rows: Sequence[float], owners: Owners, room: Sequence[int], speeds: Sequence[float], loads: list[float]
) -> tuple[list[float], int, int] | None:
    """Of one more copy of what the slowest device has: loads then, in falling order, the expert, and the device."""
    slowest = loads.index(max(loads))
    return min(
        (
            (sorted(_loads_with(loads, rows[expert], of, device, speeds), reverse=True), expert, device)
            for expert, of in enumerate(owners)
            if slowest in of and rows[expert]
            for device, free in enumerate(room)
            if free > 0 and device not in of
        ),
        default=None,
    )


def _loads_with(
    loads: list[float], count: float, of: tuple[int, ...], device: int, speeds: Sequence[float]
) -> list[float]:
    """Loads when ``device`` gets a part of the ``count`` rows of an expert that the devices ``of`` have."""
    then = list(loads)
    for owner in of:
        then[owner] -= count * (1 / len(of) - 1 / (len(of) + 1)) / speeds[owner]
    then[device] += count / (len(of) + 1) / speeds[device]
    return then


def _with_copy(owners: Owners, expert: int, device: int) -> Owners:
    return (*owners[:expert], tuple(sorted((*owners[expert], device))), *owners[expert + 1 :])


def _loads(rows: Sequence[float], owners: Owners, speeds: Sequence[float]) -> list[float]:
    loads = [0.0] * len(speeds)
    for count, of in zip(rows, owners, strict=True):
        for device in of:
            loads[device] += count / len(of) / speeds[device]
    return loads

"""Whether all layers of a model have room on some hosts, however long they take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrule.plan.cut import DeviceMemory
from ferrule.plan.search.exact.free_sets import Counts, FreeSets, Places

Room = tuple[Counts, tuple[DeviceMemory, ...]]
"""A stage: how many devices of each class it takes, and what each of them would hold."""


def have_room(available: Counts, stages: Sequence[Room]) -> bool:
    """Whether two or more of ``stages`` over different devices hold all layers.

    Exact: of every set of devices, how far from the first layer on it can hold them. A stage that begins later
    never ends earlier, so that of all ways to use the devices before it only the furthest matters.
    """
    if not stages:
        return False
    reach, last_from = _reach([uses for _, uses in stages])
    sets = FreeSets(available, [counts for counts, _ in stages])
    furthest = np.zeros(sets.all + 1, dtype=np.intp)
    for free, (options, left) in enumerate(zip(sets.fitting, sets.left, strict=True)):
        before = furthest[left]
        if bool((last_from[options] <= before).any()):
            return True
        furthest[free] = reach[options, before].max(initial=0)
    return False


def _reach(stages: Sequence[tuple[DeviceMemory, ...]]) -> tuple[Places, Places]:
    """As `DeviceMemory.reach` and ``last_from``, by stage, of that of its devices with least room."""
    uses = list({id(use): use for each in stages for use in each}.values())
    places = {id(use): place for place, use in enumerate(uses)}
    reach = np.stack([use.reach for use in uses])
    last_from = np.array([use.last_from for use in uses], dtype=np.intp)
    starts = np.cumsum([0, *(len(each) for each in stages[:-1])])
    flat = np.array([places[id(use)] for each in stages for use in each], dtype=np.intp)
    return np.minimum.reduceat(reach[flat], starts, axis=0), np.maximum.reduceat(last_from[flat], starts)

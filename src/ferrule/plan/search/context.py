"""Plans whose devices hold the layers whole and share out keys and values by pages."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.model.layer import WHOLE
from ferrule.plan.cost.context import BLOCK_PAGES
from ferrule.plan.plan import Plan, Stage
from ferrule.plan.question import Question
from ferrule.plan.runtime import BUILT_IN_ENGINE


def context_plans(question: Question) -> Iterator[Plan]:
    """One for each number of devices that shares blocks of the prefix cache out alike, on those that have most memory:
    the least of them sets how long sequences may be. None for engines that do not do it, nor on accelerators."""
    model, devices = question.model, question.cluster.devices
    if question.engine is not BUILT_IN_ENGINE or model.context_obstacle is not None:
        return
    by_memory = sorted(devices, key=lambda device: (-device.memory, device.name))
    for count in range(2, min(BLOCK_PAGES, len(devices)) + 1):
        if BLOCK_PAGES % count == 0:
            names = tuple(sorted(device.name for device in by_memory[:count]))
            reason = f"keys and values by pages on {count} ranks"
            yield Plan((Stage(names, 0, model.layers, (WHOLE,) * count, context=True),), reason=reason)

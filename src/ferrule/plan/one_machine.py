"""The plan of one machine by itself, and whether the model fits there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ferrule.errors import PlanError
from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec
from ferrule.plan.cost.memory import weight_bytes
from ferrule.plan.explain.shortage import shortage
from ferrule.plan.plan import Plan
from ferrule.plan.question import Question, Workload
from ferrule.plan.search.best import search

LEAST_CONTEXT = 64
"""Tokens with room for fewer of which serving makes no sense; the engine cuts the context to what there is room for."""
_PROMPT = 512


def require_room(model: ModelSpec, plan: Plan, devices: Sequence[str], free: Mapping[str, int]) -> None:
    """Check the weights of ranks on ``devices``, by rank, against the bytes ``free`` there, as far as those are
    known. Raises `PlanError` (with ``needed`` and ``available``) where they are too few."""
    needed: Counter[str] = Counter()
    for device, size in zip(devices, weight_bytes(model.in_engine, plan), strict=True):
        needed[device] += size
    for device, size in needed.items():
        if size > free.get(device, size):
            room = free[device]
            raise PlanError(
                f"{model.name} does not fit: {device} needs {size / 2**30:.1f} GiB for weights alone and has "
                f"{room / 2**30:.1f} free, {(size - room) / 2**30:.1f} GiB ({size - room:,} bytes) too little",
                needed=size,
                available=room,
            )


def plan_machine(model: ModelSpec, device: DeviceSpec) -> Plan:
    """The best plan of the built-in engine on ``device``.

    Raises `PlanError` (with ``needed`` and ``available`` bytes) where it cannot hold the model.
    """
    work = Workload(context=min(LEAST_CONTEXT, model.max_context), prompt=min(_PROMPT, model.max_context))
    question = Question(model, ClusterSpec((device,)), work, runnable_only=True)
    best = search(question).best
    if best is None:
        error = shortage(question).error(model.name)
        raise PlanError(
            f"{error}; free some memory, take a smaller model, or add a host (ferrule plan {model.name} tells more); "
            "--tp 1 loads it all the same",
            needed=error.needed,
            available=error.available,
        )
    return best.plan.because("")

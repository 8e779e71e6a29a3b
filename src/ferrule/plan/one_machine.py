"""The plan of one machine by itself, and whether the model fits there."""

from __future__ import annotations

from ferrule.errors import PlanError
from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec
from ferrule.plan.explain.shortage import shortage
from ferrule.plan.plan import Plan
from ferrule.plan.question import Question, Workload
from ferrule.plan.search.best import search

LEAST_CONTEXT = 64
"""Tokens with room for fewer of which serving makes no sense; the engine cuts the context to what there is room for."""
_PROMPT = 512


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

"""Interval of a prediction: the factor either way within which what is measured is expected in four of five cases."""

from __future__ import annotations

from typing import Literal

from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Interval
from ferrule.plan.question import Question
from ferrule.plan.runtime import BUILT_IN_ENGINE

Case = Literal["one", "split", "streams", "prompt"]
"""A single stream on one device or over several, several streams, a prompt."""
SPREADS: dict[Case, float] = {"one": 0.19, "split": 0.21, "streams": 0.21, "prompt": 0.23}
"""Of the log of what was measured over what is predicted by a fit that has not seen the model's family (``ferrule bench
plan``): 85 % of the errors are no larger."""
MEASURED = 0.2
"""Of a single stream of the built-in engine on a measured processor: 7 % on average and 21 % at most are seen by
``ferrule bench plan --lab``."""
NOT_COMPARED = 0.4
"""Of its prompts and of several streams there, which no measurement was compared with: a choice."""
NEVER_MEASURED = 0.7
"""Of the built-in engine by published figures, a factor of two either way: a choice."""
UNKNOWN_MAKER = 0.35
"""Of an engine on devices of a maker that no row has of it, or that is not known: a choice."""
UNKNOWN_FAMILY = 0.5
"""What is more where a family is not known: a choice."""


def interval_of(question: Question, plan: Plan) -> Interval:
    """By the engine, the devices and the model's family."""
    case: Case = "one" if plan.world_size == 1 else "split"
    more = 0.0 if question.model.known_family else UNKNOWN_FAMILY
    one, streams, prompt = (_spread(question, plan, each) + more for each in (case, "streams", "prompt"))
    return Interval(one, one if question.work.concurrency == 1 else streams, prompt)


def _spread(question: Question, plan: Plan, case: Case) -> float:
    devices = [question.cluster.by_name[name] for name in plan.devices]
    if question.runtime is BUILT_IN_ENGINE:
        if any(device.accelerated or not device.measured for device in devices):
            return NEVER_MEASURED
        return MEASURED if case in ("one", "split") else NOT_COMPARED
    known = all(device.maker and device.maker in question.runtime.kernels for device in devices)
    return SPREADS[case] if known else max(SPREADS[case], UNKNOWN_MAKER)

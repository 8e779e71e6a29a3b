"""The best plans for prompts on some devices and for tokens on the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ferrule.errors import PlanError
from ferrule.plan.cost.apart import predict_apart
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Prediction
from ferrule.plan.question import Question
from ferrule.plan.search.best import search


@dataclass(frozen=True)
class Apart:
    """``prediction``: the time to the first token of ``prompts``, all else of ``tokens``."""

    prompts: Plan
    tokens: Plan
    prediction: Prediction


def search_apart(question: Question, names: Sequence[str]) -> Apart:
    """The quickest plan for a prompt on the named devices, and by the question's objective for tokens on the rest (for
    the time to the first token, the quickest of a stream). Raises `PlanError` naming a device that is not there, and
    where either does not fit."""
    every = [device.name for device in question.cluster.devices]
    if missing := [name for name in names if name not in every]:
        raise PlanError(f"{', '.join(missing)}: no such device; there are {', '.join(every)}")
    rest = [name for name in every if name not in names]
    if not names or not rest:
        raise PlanError("prompts and tokens need at least one device each")
    alone = replace(question, objective="ttft").with_work(concurrency=1, context=question.work.prompt)
    others = replace(question, objective="latency") if question.objective == "ttft" else question
    prompts = _best(alone, names, "prompts")
    tokens = _best(others, rest, "tokens")
    return Apart(prompts, tokens, predict_apart(question, prompts, tokens))


def _best(question: Question, names: Sequence[str], what: str) -> Plan:
    found = search(question.on(question.cluster.among(names))).best
    if found is None:
        raise PlanError(f"{question.model.name} does not fit on {', '.join(names)}, which are to be for {what}")
    return found.plan

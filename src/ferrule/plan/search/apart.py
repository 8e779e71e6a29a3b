"""The best plans for prompts on some devices and for tokens on the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ferrule.errors import PlanError
from ferrule.plan.cluster.spec import DeviceSpec
from ferrule.plan.cost.predictor import predicted
from ferrule.plan.obstacle import obstacle_of
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Candidate
from ferrule.plan.question import Objective, Question
from ferrule.plan.runtime import BUILT_IN_ENGINE
from ferrule.plan.search.best import FEW, SEEN, SearchResult, ranked, search

PAYS = 1.1
"""So many times as soon the first token must come as from the ranks for tokens by themselves: a second copy of the
model takes the memory of other devices."""
_TIMED: frozenset[Objective] = frozenset({"latency", "throughput", "ttft", "answer"})


def search_apart(question: Question, names: Sequence[str]) -> Candidate:
    """The quickest plan for a prompt on the named devices (`Plan.prompts`), and by the question's objective for tokens
    on the rest (where the first token counts, the quickest of a stream). Raises `PlanError` naming a device that is not
    there, and where either does not fit."""
    every = [device.name for device in question.cluster.devices]
    if missing := [name for name in names if name not in every]:
        raise PlanError(f"{', '.join(missing)}: no such device; there are {', '.join(every)}")
    rest = [name for name in every if name not in names]
    if not names or not rest:
        raise PlanError("prompts and tokens need at least one device each")
    alone = replace(question, objective="ttft").with_work(concurrency=1, context=question.work.prompt)
    others = replace(question, objective="latency") if question.objective in ("ttft", "answer") else question
    plan = replace(_best(others, rest, "tokens"), prompts=_best(alone, names, "prompts"))
    return predicted(question, replace(plan, obstacle=_obstacle(question, plan)))


def with_apart(question: Question, found: SearchResult, *, top: int = SEEN) -> SearchResult:
    """``found``, of `search`, and plans with prompts on devices of their own, as far as they pay: the first token comes
    `PAYS` times as soon as it would from the ranks for tokens. Of up to 8 devices, where times are asked for, by the
    built-in engine."""
    more = [each for each in _divided(question) if each.prediction.fits and _pays(question, each)]
    if question.runnable_only:
        more = [each for each in more if each.plan.obstacle is None]
    if not more:
        return found
    return replace(found, candidates=ranked([*found.candidates, *more], found.single, question.objective, top))


def _divided(question: Question) -> Iterator[Candidate]:
    """For each way to give prompts to the devices with most arithmetic for what they read, which a prompt needs, and
    tokens to the others: those that read much for their arithmetic. Devices that are alike in that stay together."""
    devices = sorted(question.cluster.devices, key=lambda each: (-_intensity(each), each.name))
    asked = question.objective in _TIMED and question.runtime is BUILT_IN_ENGINE and not question.model.encoder
    if not asked or not 2 <= len(devices) <= FEW:
        return
    for count in range(1, len(devices)):
        if _intensity(devices[count - 1]) > _intensity(devices[count]):
            try:
                yield search_apart(question, [each.name for each in devices[:count]])
            except PlanError:  # one of the groups cannot hold the model, or no cable joins them
                continue


def _intensity(device: DeviceSpec) -> float:
    """Operations for each byte that it reads."""
    return device.half_flops / device.memory_bandwidth


def _pays(question: Question, candidate: Candidate) -> bool:
    alone = predicted(question, candidate.plan.alone).prediction
    return candidate.prediction.ttft_seconds * PAYS <= alone.ttft_seconds


def _obstacle(question: Question, plan: Plan) -> str | None:
    known, model = question.cluster.by_name, question.model
    if any(known[name].accelerated for name in plan.all_devices) and (reason := model.hand_over_by_tensors_obstacle):
        return reason
    return obstacle_of(model, plan)


def _best(question: Question, names: Sequence[str], what: str) -> Plan:
    found = search(question.on(question.cluster.among(names))).best
    if found is None:
        raise PlanError(f"{question.model.name} does not fit on {', '.join(names)}, which are to be for {what}")
    return found.plan

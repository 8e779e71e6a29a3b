"""Plans of one machine by itself, and whether a model fits there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ferrule.errors import PlanError
from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.local import pairs_of_host
from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec
from ferrule.plan.cost.memory import memory_of, weight_bytes
from ferrule.plan.cost.predictor import predicted
from ferrule.plan.explain.shortage import shortage, streamed_best, streamed_text
from ferrule.plan.explain.verdict import WORTH_IT, verdict
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Candidate, MemoryUse
from ferrule.plan.question import Question, Workload
from ferrule.plan.search.best import SearchResult, search

LEAST_CONTEXT = 64
"""Tokens with room for fewer of which serving makes no sense; the engine cuts the context to what there is room for."""
_PROMPT = 512
RANK_BYTES = 240 * 2**20
"""Memory of a rank's process before any weight, where that was not measured; libraries, most of it."""


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


def rank_memory(model: ModelSpec, plan: Plan, *, context: int, weights: int | None = None) -> tuple[MemoryUse, ...]:
    """Memory of the ranks of ``plan`` on any machine, with one sequence of ``context`` tokens. ``weights``: bytes of
    them that a rank has in memory at most, the others on its disk; None or 0: all."""
    names = dict.fromkeys(name for stage in plan.stages for name in stage.devices)
    devices = [  # speeds do not matter
        DeviceSpec(name, memory=1, memory_bandwidth=1.0, flops={"fp32": 1.0}, runtime_bytes=RANK_BYTES)
        for name in names
    ]
    tokens = min(context, model.max_context)
    work = Workload(context=tokens, prompt=min(_PROMPT, tokens))
    uses = memory_of(Question(model, ClusterSpec(tuple(devices)), work), plan)
    return tuple(replace(use, weights=min(use.weights, weights)) for use in uses) if weights else uses


def plan_machine(model: ModelSpec, *devices: DeviceSpec, context: int = LEAST_CONTEXT, stream: bool = False) -> Plan:
    """The best plan of the built-in engine on ``devices`` of one machine: with room for ``context`` tokens, or if that
    is nowhere, for what makes sense at least. ``stream``: weights that do not fit may be read from disk.

    Raises `PlanError` (with ``needed`` and ``available`` bytes) where they cannot hold the model.
    """
    cluster = ClusterSpec(devices, tuple(pairs_of_host(devices)))
    for tokens in dict.fromkeys((min(context, model.max_context), min(LEAST_CONTEXT, model.max_context))):
        work = Workload(context=tokens, prompt=min(_PROMPT, model.max_context))
        question = Question(model, cluster, work, runnable_only=True)
        found = search(question)
        if found.best is not None:
            split = next((each for each in found.candidates if len(each.plan.devices) > 1), None)
            best = min(_as_good(found, found.best), key=lambda each: each.plan.devices)  # of equal devices the first
            return best.plan.because(verdict(question, best, found.single, split))
    streamed = streamed_best(question)
    if stream and streamed is not None:
        return streamed[1].plan.because(f"It does not fit in memory: {streamed_text(*streamed)}.")
    error = shortage(question).error(model.name)
    told = str(error)
    if streamed is not None:
        told += f"; with --stream-weights auto it would run at {streamed_text(*streamed)}"
    raise PlanError(
        f"{told}; free some memory, take a smaller model, or add a host (ferrule plan {model.name} tells more); "
        "--tp 1 loads it all the same",
        needed=error.needed,
        available=error.available,
    )


def _as_good(found: SearchResult, best: Candidate) -> list[Candidate]:
    """Candidates like ``best`` on other devices, which are as quick and fit as well."""
    return [
        each
        for each in found.candidates
        if each.prediction.token_seconds == best.prediction.token_seconds
        and each.prediction.fits
        and [stage.width for stage in each.plan.stages] == [stage.width for stage in best.plan.stages]
    ]


def split_advice(model: ModelSpec, plan: Plan, devices: Sequence[DeviceSpec], *, context: int) -> list[str]:
    """Objections to a ``plan`` that a user asked for, on the first of ``devices`` of one machine by rank:
    where it lacks memory, and whether one of ``devices`` alone would be faster. Sentences."""
    cluster = ClusterSpec(tuple(devices), tuple(pairs_of_host(devices)))
    tokens = min(context, model.max_context)
    question = Question(model, cluster, Workload(context=tokens, prompt=min(_PROMPT, tokens)), runnable_only=True)
    asked = predicted(question, plan.on([device.name for device in devices[: plan.world_size]]))
    told = [
        f"by the planner's count {use.device} lacks {-use.margin / 2**30:.1f} GiB for its part with {tokens:,} tokens"
        for use in asked.prediction.memory
        if use.margin < 0
    ]
    single = search(question).single
    times = question.times_better(single.prediction, asked.prediction)
    if plan.world_size > 1 and single.prediction.fits and times is not None and times >= WORTH_IT:
        told.append(f"{single.plan.devices[0]} alone should be {times:.2f} times as fast as this split")
    return told


def times_as_fast(model: ModelSpec, plan: Plan, than: Plan, devices: Sequence[DeviceSpec], *, context: int) -> float:
    """How many times as fast tokens of one stream come with ``plan`` as with another one, on ``devices`` of one
    machine."""
    cluster = ClusterSpec(tuple(devices), tuple(pairs_of_host(devices)))
    tokens = min(context, model.max_context)
    question = Question(model, cluster, Workload(context=tokens, prompt=min(_PROMPT, tokens)), runnable_only=True)
    seconds = [predicted(question, each).prediction.token_seconds for each in (plan, than)]
    return seconds[1] / seconds[0]

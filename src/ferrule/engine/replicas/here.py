"""Places of replicas on this machine: on devices of their own, or on processors that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ferrule.engine.host.device_choice import CONTEXT, DeviceChoice, Measure
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.options import EngineOptions
from ferrule.engine.replicas.start import ReplicaPlace
from ferrule.errors import ConfigError, PlanError
from ferrule.model import ModelSpec
from ferrule.plan import ClusterSpec, DeviceSpec, Plan, Question, Workload, rank_memory, search
from ferrule.plan.cluster.local import pairs_of_host
from ferrule.plan.explain import WORTH_IT
from ferrule.plan.one_machine import LEAST_CONTEXT
from ferrule.plan.replicas import best_replicas
from ferrule.process import usable_cores
from ferrule.process.memory import memory_free

AT_ONCE = 16
"""Sequences for which the planner looks for the best number of replicas."""


def on_processors(options: EngineOptions, count: int, model: ModelSpec, plan: Plan) -> list[ReplicaPlace]:
    """Places of ``count`` replicas of ``plan``, which share this machine's cores and memory. Raises `PlanError` (with
    ``needed`` and ``available``) where that is too little for all of them."""
    needed = count * sum(use.total for use in rank_memory(model, plan, context=LEAST_CONTEXT))
    free, _ = memory_free()
    if needed > free:
        raise PlanError(
            f"{count} replicas of {model.name} do not fit: they need {needed / 2**30:.1f} GiB, and this machine has "
            f"{free / 2**30:.1f} free, {(needed - free) / 2**30:.1f} GiB too little; ask for fewer (--replicas)",
            needed=needed,
            available=free,
        )
    return [
        ReplicaPlace(
            replace(options, copies=count, copies_left=count - 1 - number),
            LocalPlanner(standby=options.standby).about,
        )
        for number in range(count)
    ]


def on_named_devices(options: EngineOptions, count: int | None, names: Sequence[str]) -> list[ReplicaPlace]:
    """Places of replicas that are split as the user said, on one of ``names`` for each rank; as many as there is room
    for where ``count`` is None. Raises `ConfigError` where the devices are too few."""
    ranks = options.tensor * options.pipeline
    number = count or max(1, len(names) // ranks)
    if len(names) < number * ranks:
        raise ConfigError(
            f"{number} replicas of {ranks} rank{'s' * (ranks > 1)} need {number * ranks} devices, and "
            f"--device {options.device} names {len(names)}: {', '.join(names)}"
        )
    groups = [names[at * ranks : (at + 1) * ranks] for at in range(number)]
    return [
        ReplicaPlace(
            replace(options, device=",".join(group), threads=_threads(options, number * ranks)),
            LocalPlanner(standby=options.standby).about,
        )
        for group in groups
    ]


def on_devices(
    options: EngineOptions, count: int | None, model: ModelSpec, devices: Sequence[DeviceSpec], measure: Measure
) -> list[ReplicaPlace]:
    """Places of replicas among ``devices``, where the planner splits each as is best; as many as it finds best where
    ``count`` is None. Raises `PlanError` where they do not fit."""
    by_name = {device.name: device for device in devices}
    groups = _groups(options, count, model, devices)
    threads = _threads(options, len(groups))
    places = []
    for group, speed in groups:
        own = [by_name[name] for name in group]
        choice = DeviceChoice(own, measure, context=options.max_context, threads=threads)
        places.append(
            ReplicaPlace(
                replace(options, device=",".join(group), threads=threads),
                LocalPlanner(standby=options.standby, choice=choice).about,
                partial(float, speed),
            )
        )
    return places


def _groups(
    options: EngineOptions, count: int | None, model: ModelSpec, devices: Sequence[DeviceSpec]
) -> list[tuple[tuple[str, ...], float]]:
    """Devices of each replica, and its speed."""
    cluster = ClusterSpec(tuple(devices), tuple(pairs_of_host(devices)))
    context = min(options.max_context or CONTEXT, model.max_context)
    work = Workload(context, min(512, context), concurrency=AT_ONCE if count is None else count)
    question = Question(model, cluster, work, "throughput", runnable_only=True)
    found = best_replicas(question, count)
    if count is None:
        alone = search(question).best
        if found is None or (alone and found.throughput < WORTH_IT * alone.prediction.throughput):
            return [(tuple(device.name for device in devices), 1.0)]
    elif found is None:
        raise PlanError(
            f"{count} replicas of {model.name} with {context:,} tokens of context do not fit on devices of their own "
            f"among {', '.join(device.name for device in devices)}; ask for fewer (--replicas)"
        )
    return [(each.plan.devices, each.prediction.tokens_per_s) for each in found.copies]


def _threads(options: EngineOptions, among: int) -> int:
    return options.threads or max(1, usable_cores() // among)

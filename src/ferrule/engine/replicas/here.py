"""Places of replicas on this machine: on devices of their own, or on processors that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ferrule.engine.host.device_choice import DeviceChoice, Measure
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.processes import rank_threads
from ferrule.engine.options import EngineOptions
from ferrule.engine.replicas.start import ReplicaPlace
from ferrule.errors import ConfigError, PlanError
from ferrule.model import ModelSpec
from ferrule.plan import ClusterSpec, DeviceSpec, Plan, rank_memory
from ferrule.plan.cluster.local import pairs_of_host
from ferrule.plan.one_machine import LEAST_CONTEXT
from ferrule.plan.replicas import replicas_question, worthwhile_replicas
from ferrule.process.memory import memory_free


def on_processors(options: EngineOptions, count: int, model: ModelSpec, plan: Plan) -> list[ReplicaPlace]:
    """Places of ``count`` replicas of ``plan``, which share this machine's cores and memory. Raises `PlanError` (with
    ``needed`` and ``available``) where that is too little for all of them."""
    uses = rank_memory(model, plan, context=LEAST_CONTEXT, weights=options.stream_weights)
    needed = count * sum(use.total for use in uses)
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
    ranks = options.ranks
    number = count or max(1, len(names) // ranks)
    if len(names) < number * ranks:
        raise ConfigError(
            f"{number} replicas of {ranks} rank{'s' * (ranks > 1)} need {number * ranks} devices, and "
            f"--device {options.device} names {len(names)}: {', '.join(names)}"
        )
    groups = [names[at * ranks : (at + 1) * ranks] for at in range(number)]
    return [
        ReplicaPlace(
            replace(options, device=",".join(group), threads=rank_threads(options.threads, number * ranks)),
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
    threads = rank_threads(options.threads, len(groups))
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
    question = replicas_question(model, cluster, count, options.max_context)
    found = worthwhile_replicas(question, count)
    if found is None and count is None:
        return [(tuple(device.name for device in devices), 1.0)]
    if found is None:
        raise PlanError(
            f"{count} replicas of {model.name} with {question.work.context:,} tokens of context do not fit on devices "
            f"of their own among {', '.join(device.name for device in devices)}; ask for fewer (--replicas)"
        )
    return [(each.plan.devices, each.prediction.tokens_per_s) for each in found.copies]

"""Tokens per second of three lab hosts that have a core, half of one and a quarter: by even parts, by parts after
their speed, by the planner's choice, and by what is near that.

As root, with two idle cores: `python scripts/uneven_hosts.py [MODEL] [--cycles N]` (a random Llama of half a billion
parameters; 15 minutes). The planner gets the hosts' speeds as they were measured: of the whole model on each, all at
the same time. Every split is then started, measured and ended, and all that again, so that what drifts hits all alike.

The hosts are those of a lab whose programs the kernel's control groups hold to so many cores (`Lab`'s ``cores``), from
their first instruction on, so that a rank knows of its quota and does not wait awake where that costs it time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import NamedTuple

from ferrule.agent.device import RANK
from ferrule.bench.bystanders import Bystanders
from ferrule.bench.engine.contestants import PROMPT, Ferrule, seconds_per_token
from ferrule.bench.random_model import given_or_random
from ferrule.engine import EngineOptions
from ferrule.lab import Lab, Shaping, mesh
from ferrule.model import ModelSpec, read_model
from ferrule.plan import ClusterSpec, DeviceSpec, PairSpec, Plan, Question, Workload, make_plan, predict, search
from ferrule.plan.cluster.profile import emulated_rail
from ferrule.plan.device.measure import measure_device

QUOTAS = (1.0, 0.5, 0.25)
HOSTS = ("host0", "host1", "host2")
CYCLES, ROUNDS, TOKENS = 3, 5, 33
WORK = Workload(context=1024, prompt=PROMPT)
KINDS = 4
"""Of the planner's list, best first, so many are measured."""


class Turn(NamedTuple):
    """Of all processors, what others had meanwhile, and seconds per token."""

    others: float
    seconds: float


def limited(names: Sequence[str]) -> Lab:
    """A lab of these hosts with their quotas."""
    return Lab(mesh(len(names)), names=names, cores=[QUOTAS[HOSTS.index(name)] for name in names])


def options(directory: Path) -> EngineOptions:
    return EngineOptions(str(directory), threads=1, max_context=WORK.context, self_test=False)


async def alone(directory: Path) -> list[float]:
    """Seconds per token of the whole model on each host, while the others work as well."""
    async with AsyncExitStack() as stack:
        every = []
        for name in HOSTS:
            lab = stack.enter_context(limited([name]))
            every.append(await stack.enter_async_context(Ferrule(options(directory), lab)))
        counts = [max(4, round(TOKENS * quota)) for quota in QUOTAS]  # all end at about the same time
        turns = [
            await asyncio.gather(*(one.turn(count) for one, count in zip(every, counts, strict=True)))
            for _ in range(ROUNDS)
        ]
    return [min(seconds_per_token(each) for each in those) for those in zip(*turns, strict=True)]


def cluster(spec: ModelSpec, device: DeviceSpec, seconds: Sequence[float]) -> ClusterSpec:
    """``device`` three times, as much slower in all that it does as the whole model was there."""
    whole = make_plan(spec).on([device.name])
    expected = predict(Question(spec, ClusterSpec((device,)), WORK), whole).token_seconds
    devices = tuple(slower(device, name, each / expected) for name, each in zip(HOSTS, seconds, strict=True))
    rail = emulated_rail("cable", Shaping())
    pairs = tuple(PairSpec(ends, (rail,)) for ends in combinations(HOSTS, 2))
    return ClusterSpec(devices, pairs, cores=len(HOSTS))  # quotas: each has what nobody else takes


def slower(device: DeviceSpec, name: str, times: float) -> DeviceSpec:
    return replace(
        device,
        name=name,
        memory_bandwidth=device.memory_bandwidth / times,
        flops={dtype: rate / times for dtype, rate in device.flops.items()},
        launch_seconds=device.launch_seconds * times,
        eager_seconds=None if device.eager_seconds is None else device.eager_seconds * times,
    )


def neighbours(spec: ModelSpec, plan: Plan) -> dict[str, Plan]:
    """Of a plan of one stage: a key/value head, and its part of the columns, from one host to another."""
    if len(plan.stages) > 1 or plan.world_size == 1:
        return {}
    heads = [round(share.key_value * spec.key_value_heads) for share in plan.stages[0].shares]
    found = {}
    for giver, taker in permutations(range(len(heads)), 2):
        if heads[giver] > 1:
            moved = [each - (place == giver) + (place == taker) for place, each in enumerate(heads)]
            speeds = tuple(float(each) for each in moved)
            found[f"heads {shown(moved)}"] = make_plan(spec, tensor=len(heads), speeds=speeds).on(plan.devices)
    return found


def shown(numbers: Sequence[int]) -> str:
    return ":".join(map(str, numbers))


def contestants(spec: ModelSpec, among: ClusterSpec) -> tuple[dict[str, Plan], str]:
    """Plans by their names, and the name of the planner's choice."""
    question = Question(spec, among, WORK, runnable_only=True)
    kinds = [each.plan for each in search(question).candidates[:KINDS]]
    names = {f"planner {place + 1}: {described(spec, plan)}": plan for place, plan in enumerate(kinds)}
    even = make_plan(spec, tensor=len(HOSTS)).on(HOSTS)
    by_speed = make_plan(spec, tensor=len(HOSTS), speeds=tuple(4 * quota for quota in QUOTAS)).on(HOSTS)
    return {"even": even, "by speed": by_speed, **names, **neighbours(spec, kinds[0])}, next(iter(names))


def described(spec: ModelSpec, plan: Plan) -> str:
    if plan.world_size == 1:
        return f"alone on {plan.devices[0]}"
    if len(plan.stages) > 1:
        return f"layers {shown([each.last_layer - each.first_layer for each in plan.stages])}"
    (stage,) = plan.stages
    heads = shown([round(share.key_value * spec.key_value_heads) for share in stage.shares])
    return f"heads {heads}, columns {shown([round(share.width * 64) for share in stage.shares])} on {len(plan.devices)}"


async def measured(directory: Path, plan: Plan) -> list[Turn]:
    bystanders, turns = Bystanders(), []
    with limited(plan.devices) as lab:
        async with Ferrule(options(directory), lab, plan) as contestant:
            await contestant.turn(4)
            for _ in range(ROUNDS):
                bystanders.begin()
                seconds = seconds_per_token(await contestant.turn(TOKENS))
                turns.append(Turn(bystanders.share(), seconds))
    return turns


def quietest(turns: Sequence[Turn]) -> Turn:
    """The median second of the third of the turns in which others had least, and the most that they had in these."""
    quiet = sorted(turns)[: -(-len(turns) // 3)]
    return Turn(quiet[-1].others, statistics.median(turn.seconds for turn in quiet))


async def run(directory: Path, cycles: int) -> None:
    spec = read_model(str(directory))
    print("measuring this machine, and the whole model on each host")
    device = measure_device("host", rank=RANK, unit="cpu", threads=1, fresh=True)
    seconds = await alone(directory)
    print("alone: " + ", ".join(f"{1 / each:.2f}" for each in seconds) + " tokens/s")
    hosts = cluster(spec, device, seconds)
    plans, choice = contestants(spec, hosts)
    turns: dict[str, list[Turn]] = {name: [] for name in plans}
    for cycle in range(cycles):
        for name, plan in plans.items():
            print(f"cycle {cycle + 1} of {cycles}: {name}", end=" ", flush=True)
            turns[name] += await measured(directory, plan)
            print(f"{1 / quietest(turns[name]).seconds:.2f} tokens/s")
    found = {name: quietest(those) for name, those in turns.items()}
    width = max(map(len, plans))
    for name, turn in found.items():
        predicted = 1 / predict(Question(spec, hosts, WORK), plans[name]).token_seconds
        print(
            f"{name:>{width}}: {1 / turn.seconds:6.2f} tokens/s, predicted {predicted:6.2f}; "
            f"others had up to {turn.others:.0%} of the machine"
        )
    best = min(found, key=lambda name: found[name].seconds)
    even = found["even"].seconds
    uneven = {name: found[name] for name in found if set(plans[name].devices) == set(HOSTS) and name != "even"}
    quickest = min(uneven, key=lambda name: uneven[name].seconds)
    print(f"by speed is {even / found['by speed'].seconds:.2f} times as fast as even (to be at least 1.5)")
    print(f"the quickest uneven split, {quickest}, is {even / uneven[quickest].seconds:.2f} times as fast as even")
    print(
        f"the planner's choice, {choice}, is {found[choice].seconds / found[best].seconds - 1:.1%} slower than the "
        f"best that was measured, {best} (to be at most 5 %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("model", nargs="?", help="its directory (a random Llama of half a billion parameters)")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="how often all are measured")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ferrule-uneven-") as scratch:
        asyncio.run(run(given_or_random(given.model, Path(scratch), print, quick=False), given.cycles))


if __name__ == "__main__":
    main()

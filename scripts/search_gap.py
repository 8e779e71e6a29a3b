"""Optimality gap of the planner's heuristic for many hosts, measured on few, and the time that searches take.

`gap` or `times` does only that.
"""

from __future__ import annotations

import itertools
import random
import sys
import time

from ferrule.model import read_model
from ferrule.plan import (
    ClusterSpec,
    DeviceSpec,
    Objective,
    PairSpec,
    Question,
    RailSpec,
    Workload,
    predict,
    search,
)
from ferrule.plan.search.exact.space import CLOSE
from ferrule.plan.search.heuristic.many import many_hosts

MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-235b-a22b", "deepseek-v3")
EXACT: tuple[Objective, ...] = ("latency", "throughput", "ttft")
EVERY: tuple[Objective, ...] = (*EXACT, "context", "energy")
SEEDS = 6
CLUSTERS = (
    (8, True, 8),
    (8, False, 8),
    (8, False, 2),
    (8, False, 1),
    (64, True, 64),
    (64, False, 64),
    (1000, False, 8),
)
"""Hosts, whether they are alike, and to how many neighbours each side they have cables."""


def cluster(hosts: int, seed: int, memory: float, *, alike: bool = False, neighbours: int = 10_000) -> ClusterSpec:
    """All different, or all alike; each with cables to the next ``neighbours`` hosts of a circle."""
    dice = random.Random(seed)

    def about(value: float, spread: float) -> float:
        return value if alike else value * dice.uniform(1 / spread, spread)

    devices = tuple(
        DeviceSpec(
            f"host{i:04}",
            int(about(memory, 1.5)),
            about(2e11, 2),
            {"bf16": about(5e13, 2)},
            watts_idle=20.0,
            watts_busy=about(120.0, 1.5),
        )
        for i in range(hosts)
    )
    pairs = tuple(
        PairSpec((a.name, b.name), (RailSpec("cable", about(3e-5, 1.4), about(2.5e9, 1.4)),))
        for (i, a), (j, b) in itertools.combinations(enumerate(devices), 2)
        if min(j - i, hosts - (j - i)) <= neighbours
    )
    return ClusterSpec(devices, pairs)


def gap(model_name: str, objective: Objective, seed: int) -> float:
    """Of six unlike hosts, whose pools hold four: how much worse than the best, as a part of that."""
    model = read_model(model_name)
    spec = cluster(6, seed, model.bytes / 4)
    work = Workload(concurrency=8)
    best = search(Question(model, spec, work, objective)).best
    plans = many_hosts(Question(model, spec, work, objective), pool=4).found
    found = [told for plan in plans if (told := predict(Question(model, spec, work), plan)).fits]
    assert best is not None
    seconds = {
        "latency": lambda told: told.token_seconds,
        "throughput": lambda told: told.step_seconds,
        "ttft": lambda told: told.ttft_seconds,
    }[objective]
    return float(min(map(seconds, found)) / seconds(best.prediction) - 1)


def gaps() -> None:
    for name, objective in itertools.product(MODELS, EXACT):
        found = sorted(gap(name, objective, seed) for seed in range(SEEDS))
        optimal = sum(one < CLOSE for one in found)
        mean = sum(found) / len(found)
        print(f"gap, {name}, {objective}: mean {mean:.1%}, worst {found[-1]:.1%}, optimal in {optimal} of {SEEDS}")


def times() -> None:
    for (hosts, alike, neighbours), name, objective in itertools.product(CLUSTERS, MODELS[1:], EVERY):
        model = read_model(name, weights="int4")
        spec = cluster(hosts, 1, model.bytes / 3, alike=alike, neighbours=neighbours)
        start, busy = time.perf_counter(), time.process_time()
        result = search(Question(model, spec, Workload(concurrency=8), objective))
        wall, cpu = time.perf_counter() - start, time.process_time() - busy
        kind, sure = "alike" if alike else "unlike", "exact" if result.exact else "not exact"
        print(
            f"{hosts} {kind} hosts, {neighbours} neighbours, {name}, {objective}: {wall:.2f} s "
            f"({cpu:.2f} s of one core), {sure}",
            flush=True,
        )


def main() -> None:
    for what, show in {"gap": gaps, "times": times}.items():
        if what in sys.argv[1:] or len(sys.argv) == 1:
            show()


if __name__ == "__main__":
    main()

"""How far the planner's heuristic for many hosts is from the optimum on few, and how long searches take."""

from __future__ import annotations

import itertools
import random
import time

from ferrule.plan import (
    BUILT_IN_ENGINE,
    ClusterSpec,
    DeviceSpec,
    LinkSpec,
    Objective,
    RailSpec,
    Workload,
    predict,
    read_model,
    search,
)
from ferrule.plan.search_many import many_hosts

MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-235b-a22b")
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput")


def cluster(hosts: int, seed: int, memory: float, *, alike: bool = False, neighbours: int = 10_000) -> ClusterSpec:
    """All different, or all alike; each with cables to the next ``neighbours`` hosts of a circle."""
    dice = random.Random(seed)

    def about(value: float, spread: float) -> float:
        return value if alike else value * dice.uniform(1 / spread, spread)

    devices = tuple(
        DeviceSpec(f"host{i:04}", int(about(memory, 1.5)), about(2e11, 2), {"bf16": about(5e13, 2)})
        for i in range(hosts)
    )
    links = tuple(
        LinkSpec((a.name, b.name), (RailSpec("cable", about(3e-5, 1.4), about(2.5e9, 1.4)),))
        for (i, a), (j, b) in itertools.combinations(enumerate(devices), 2)
        if min(j - i, hosts - (j - i)) <= neighbours
    )
    return ClusterSpec(devices, links)


def gap(model_name: str, objective: Objective, seed: int) -> float:
    """Of six unlike hosts, whose pools hold four: how much worse than the best, as a part of that."""
    model = read_model(model_name)
    spec = cluster(6, seed, model.bytes / 4)
    work = Workload(concurrency=8)
    best = search(model, spec, work, objective).best
    layouts = many_hosts(model, spec, work, objective, BUILT_IN_ENGINE, runnable=False, pool=4).found
    found = [told for layout in layouts if (told := predict(model, spec, layout, work)).fits]
    assert best is not None
    if objective == "latency":
        return min(one.token_seconds for one in found) / best.prediction.token_seconds - 1
    return min(one.step_seconds for one in found) / best.prediction.step_seconds - 1


def main() -> None:
    for objective in OBJECTIVES:
        gaps = sorted(gap(name, objective, seed) for name in MODELS for seed in range(6))
        mean, worst = sum(gaps) / len(gaps), gaps[-1]
        optimal = sum(one < 1e-6 for one in gaps)
        print(f"gap, {objective}: mean {mean:.1%}, worst {worst:.1%}, optimal in {optimal} of {len(gaps)}")
    for hosts, alike, neighbours in ((8, True, 8), (8, False, 8), (64, True, 64), (64, False, 64), (1000, False, 8)):
        spec = cluster(hosts, 1, 40e9, alike=alike, neighbours=neighbours)
        for name, objective in itertools.product(MODELS[1:], OBJECTIVES):
            model = read_model(name, weights="int4")
            start, busy = time.perf_counter(), time.process_time()
            search(model, spec, Workload(concurrency=8), objective)
            wall, cpu = time.perf_counter() - start, time.process_time() - busy
            kind = "alike" if alike else "unlike"
            print(f"{hosts} {kind} hosts, {name}, {objective}: {wall:.2f} s ({cpu:.2f} s of one core)")


if __name__ == "__main__":
    main()

"""When nothing fits, what is missing is told, and what would fit does."""

from __future__ import annotations

import itertools
from dataclasses import replace

from ferrule.plan import ClusterSpec, DeviceSpec, LinkSpec, ModelSpec, RailSpec, Workload, read_model, shortfall
from ferrule.plan.search.best import search

GB = 10**9


def stored_as(weights: str) -> ModelSpec:
    model = read_model("llama-3.2-3b", weights=weights)
    return replace(model, decoder=model.decoder[:6])


MODEL = stored_as("bfloat16")  # 1.9 GB


def hosts(*memory: float) -> ClusterSpec:
    devices = tuple(DeviceSpec(f"m{i}", int(size * GB), 2e11, {"bf16": 2e13}) for i, size in enumerate(memory))
    rail = RailSpec("eth", 3e-5, 2e9)
    links = tuple(LinkSpec((a.name, b.name), (rail,)) for a, b in itertools.combinations(devices, 2))
    return ClusterSpec(devices, links)


def test_nothing_is_missing_where_it_fits() -> None:
    assert shortfall(MODEL, hosts(8.0), Workload(context=256)) is None


def test_missing_bytes_are_what_the_hosts_lack_together() -> None:
    cluster, work = hosts(0.7, 0.6), Workload(context=256, prompt=32)
    found = shortfall(MODEL, cluster, work)
    assert found is not None
    uses = found.attempt.prediction.memory
    assert found.missing == sum(max(0, -use.margin) for use in uses)
    assert len(uses) == 2, "two hosts miss less than one"
    enough = hosts(*(each + found.missing / GB + 0.01 for each in (0.7, 0.6)))
    assert search(MODEL, enough, work).best is not None


def test_a_shorter_context_is_found_and_one_token_more_does_not_fit() -> None:
    cluster, work = hosts(2.5), Workload(context=100_000, prompt=32)
    found = shortfall(MODEL, cluster, work)
    assert found is not None
    assert found.shorter is not None
    assert found.shorter.prediction.fits
    assert 1 < found.context < work.context
    assert search(MODEL, cluster, replace(work, context=found.context + 1)).best is None


def test_lighter_weights_and_one_more_host_are_offered_where_they_help() -> None:
    found = shortfall(MODEL, hosts(1.0, 0.8), Workload(context=256, prompt=32), stored_as=stored_as)
    assert found is not None
    assert found.shorter is None, "not even the weights fit"
    assert found.weights == "int8"
    assert found.lighter is not None
    assert found.lighter.prediction.fits
    assert (found.host, found.hosts) == ("m0", 1)
    assert found.larger is not None
    assert "m0-2" in found.larger.layout.devices


def test_what_does_not_help_is_not_offered() -> None:
    found = shortfall(MODEL, hosts(0.1), Workload(context=256, prompt=32), stored_as=stored_as)
    assert found is not None
    assert (found.shorter, found.lighter, found.larger) == (None, None, None)

"""GPUs that compute in the host's memory, which counts once, and what only GPUs are measured for."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from ferrule.plan.device import backend as device_backend
from ferrule.plan.device import benchmark, measure
from ferrule.plan.device.backend import TorchBackend, choose_backend
from ferrule.plan.device.benchmark import FEW_ROWS, Effort, Figures


@pytest.mark.parametrize(
    ("unit", "unified", "free"), [("xpu:0", False, 5), ("xpu:0", True, 3), ("cuda:0", True, 3), ("cpu", True, 3)]
)
def test_free_memory_of_a_unified_device_is_the_hosts(
    unit: str, unified: bool, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "memory_free", lambda: (3, 8))
    figures = Figures(unit, "GPU", "torch", 5, 9, 1e9, {"bf16": 1e12}, 1e-6, unified=unified)
    assert measure.free_now(figures) == free


@pytest.mark.parametrize(("integrated", "free"), [(False, 100), (True, 40)])
def test_an_integrated_gpu_has_at_most_what_the_host_has_free(
    integrated: bool, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    module = SimpleNamespace(
        get_device_name=lambda number: "GB10",
        get_device_properties=lambda number: SimpleNamespace(is_integrated=integrated),
        device_count=lambda: 1,
        mem_get_info=lambda number: (100, 120),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    monkeypatch.setattr(device_backend, "memory_free", lambda: (40, 64))
    gpu = TorchBackend("cuda")
    assert (gpu.unified, gpu.memory()) == (integrated, (free, 120))


@pytest.mark.parametrize(
    ("names", "count", "unlike"),
    [(("A", "A"), 2, ()), (("A", "B", "A"), 1, ("cuda:1", "cuda:2")), (("A",), 1, ())],
)
def test_gpus_that_are_not_alike_are_told(
    names: tuple[str, ...], count: int, unlike: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    module = SimpleNamespace(
        get_device_name=lambda number: names[number],
        get_device_properties=lambda number: SimpleNamespace(),
        device_count=lambda: len(names),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    gpu = TorchBackend("cuda")
    assert (gpu.count, gpu.unlike) == (count, unlike)


def test_a_gpu_tells_products_of_few_rows_and_a_processor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Effort(unit="cpu", weights=1 << 20, rows=2, seconds=0.002, disk=0, copied=1 << 16)
    assert benchmark.run(tiny).products == {}
    monkeypatch.setattr(benchmark, "choose_backend", lambda unit, threads: TorchBackend("cpu"))
    figures = benchmark.run(tiny)
    assert {dtype: tuple(rates) for dtype, rates in figures.products.items()} == dict.fromkeys(
        ("fp32", "bf16", "fp16"), FEW_ROWS
    )
    assert all(rate > 0 for rates in figures.products.values() for rate in rates.values())
    assert "bf16 products by rows: " in figures.notes[-1]
    assert msgspec.json.decode(msgspec.json.encode(figures), type=Figures) == figures


def test_processors_are_unified() -> None:
    assert choose_backend("cpu", 1).unified

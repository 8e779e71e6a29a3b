"""The benchmark of a device: what is read from the system, by recorded trees; what is timed, in tiny sizes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from ferrule.agent.device import RANK
from ferrule.engine.devices import open_device
from ferrule.errors import ConfigError, PlanError
from ferrule.links.power import PowerMeter
from ferrule.plan.cluster.spec import RailSpec
from ferrule.plan.device import backend as device_backend
from ferrule.plan.device import measure as device_measure
from ferrule.plan.device.backend import Backend, TorchBackend, choose_backend
from ferrule.plan.device.benchmark import Copies, Effort, Figures, copy_rates, launch_seconds, product_rate, read_rate
from ferrule.plan.device.disk import disk_read
from ferrule.plan.device.measure import RankNeeds, device_from, measure_device, measure_figures

TINY = Effort(weights=1 << 20, rows=2, seconds=0.002, disk=0)
FIGURES = Figures(
    "cpu", "A processor", "numpy 2", 8 << 30, 16 << 30, 20e9, {"fp32": 1e11}, 2e-6, 1e9, None, 30.0, ("why",), 3 << 20
)


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_watts_of_rapl_without_what_is_counted_twice(tmp_path: Path) -> None:
    rapl = tmp_path / "sys/class/powercap"
    _write(rapl, {"intel-rapl:0/energy_uj": "9000000", "intel-rapl:0/max_energy_range_uj": "10000000"})
    _write(rapl, {"intel-rapl:0:0/energy_uj": "0", "intel-rapl/name": "top"})
    meter = PowerMeter(tmp_path)
    meter._begin -= 1000
    _write(rapl, {"intel-rapl:0/energy_uj": "1000000", "intel-rapl:0:0/energy_uj": "900000000"})
    assert meter._rapl() == pytest.approx(2 / 1000, rel=0.1)


def test_watts_of_a_gpu_and_none(tmp_path: Path) -> None:
    assert PowerMeter(tmp_path)._rapl() is None
    sensors = tmp_path / "sys/class/hwmon"
    _write(sensors, {"hwmon0/name": "nvme\n", "hwmon0/power1_input": "1000000"})
    assert PowerMeter(tmp_path)._sensors() == []
    _write(sensors, {"hwmon1/name": "amdgpu\n", "hwmon1/power1_average": "55000000"})
    assert PowerMeter(tmp_path)._sensors() == [pytest.approx(55.0)]


def test_the_disk_of_a_folder_that_is_not_there_yet_and_of_none(tmp_path: Path) -> None:
    rate, why = disk_read(tmp_path / "models" / "mine", 4 << 20)
    assert (rate is None) == bool(why)
    assert rate is None or rate > 0
    assert list(tmp_path.iterdir()) == []
    rate, why = disk_read(tmp_path, 1 << 60)
    assert rate is None
    assert "too little room" in why


def test_a_folder_in_memory_is_no_disk() -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("no /dev/shm on this system")
    rate, why = disk_read(memory, 4 << 20)
    assert rate is None
    assert why


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_numbers_of_processors(dtype: str) -> None:
    backend: Backend = choose_backend("cpu", 2)
    assert read_rate(backend, dtype, 1 << 20, 0.001) > 1e6
    assert product_rate(backend, dtype, 2, 0.001) > 1e5
    assert 0 < launch_seconds(backend, 0.001) < 0.1
    product = backend.linear(3, 40, 64, dtype)()
    assert isinstance(product, np.ndarray)
    assert product[:, :40] == pytest.approx(np.ones((3, 40)))


@pytest.mark.parametrize("name", ["cpu:0", "emulated:3"])
def test_numbers_of_any_device_of_torch(name: str) -> None:
    """Torch's own processor and the emulated accelerator, through what GPUs are measured with."""
    machine = open_device(name, 1)
    kind, _, number = name.partition(":")
    backend = TorchBackend(kind, int(number))
    assert backend.unit == name
    assert 0 < backend.memory()[0] <= backend.memory()[1]
    assert read_rate(backend, "fp32", 1 << 20, 0.001) > 1e6
    assert product_rate(backend, "fp32", 2, 0.001) > 1e3
    assert 0 < launch_seconds(backend, 0.001) < 1
    copies = copy_rates(backend, 1 << 16, 0.001)
    assert copies is not None
    assert min(copies.to_device, copies.to_host) > 1e5
    assert 0 < copies.seconds < 1
    to_device, to_host = backend.copies(64)
    there, back = to_device(), to_host()
    backend.wait()
    assert isinstance(there, torch.Tensor)
    assert isinstance(back, torch.Tensor)
    assert (there.device.type, back.device.type) == (machine.torch_device.type, "cpu")
    assert there.cpu().tolist() == back.tolist() == [0] * 64


def test_a_gpu_is_chosen_by_name_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.staging.accelerators", lambda kind: {"cuda": 2}.get(kind, 0))
    monkeypatch.setattr(device_backend, "TorchBackend", lambda kind, number: f"{kind}:{number}")
    assert [choose_backend(unit, 1) for unit in ("auto", "cuda", "cuda:1")] == ["cuda:0", "cuda:0", "cuda:1"]
    for wrong in ("cuda:2", "xpu", "cuda:x", "gpu"):
        with pytest.raises(ConfigError, match=f"finds no device '{wrong}' here, only cuda:0, cuda:1, cpu"):
            choose_backend(wrong, 1)


def test_a_gpu_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="torch finds no device 'mps' here, only cpu"):
        choose_backend("mps", 1)


def test_copies_slow_rails_down(tmp_path: Path) -> None:
    figures = replace(FIGURES, unit="cuda:1", title="A card", copies=Copies(12e9, 6e9, 8e-6))
    card = device_from(figures, "box", 5 << 30)
    assert (card.kind, card.device, card.copy_rate, card.copy_seconds) == ("A card (cuda)", "cuda:1", 6e9, 8e-6)
    rail = RailSpec("cable", 20e-6, 3e9)
    slower = card.staged(card.staged(rail))
    assert (slower.name, slower.alpha, slower.bandwidth) == ("cable", pytest.approx(36e-6), pytest.approx(1.5e9))
    plain = device_from(FIGURES, "box", 5 << 30)
    assert (plain.device, plain.copy_rate, plain.staged(rail)) == ("cpu", None, rail)
    with pytest.raises(PlanError, match="copy_rate must be more than 0"):
        replace(card, copy_rate=0.0)


def test_figures_make_a_device() -> None:
    device = device_from(FIGURES, "box", 5 << 30)
    assert (device.name, device.memory, device.kind, device.measured) == ("box", 5 << 30, "A processor (cpu)", True)
    assert (device.memory_bandwidth, device.launch_seconds, device.disk_read) == (20e9, 2e-6, 1e9)
    assert (device.runtime_bytes, device.watts_idle, device.watts_busy) == (3 << 20, None, 30.0)
    with pytest.raises(PlanError, match="memory must be more than 0"):
        device_from(FIGURES, "box", 0)
    assert msgspec.json.decode(msgspec.json.encode(FIGURES), type=Figures) == FIGURES


def test_what_was_measured_is_known_until_something_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Effort] = []

    def benchmark(effort: Effort, timeout: float) -> Figures:
        runs.append(effort)
        return FIGURES

    monkeypatch.setattr(device_measure, "_benchmark", benchmark)
    monkeypatch.setattr(
        device_measure, "rank_needs", lambda rank, timeout, timed: RankNeeds(7, 5e-3, 1e-3) if timed else RankNeeds(7)
    )
    cache = tmp_path / "devices.json"

    def measure(**options: object) -> int:
        assert measure_figures(rank=RANK, cache=cache, model=tmp_path, **options).runtime_bytes == 7  # type: ignore[arg-type]
        return len(runs)

    assert measure() == 1
    assert measure() == 1
    assert measure(threads=3) == 2
    assert measure() == 2
    assert measure(fresh=True) == 3
    assert runs[1].threads == 3
    cache.write_text(cache.read_text().replace('"memory_bandwidth": 20000000000.0', '"memory_bandwidth": 0'))
    assert measure() == 4
    cache.write_text("{")
    assert measure() == 5
    old = json.loads(cache.read_text())
    for entry in old["devices"].values():
        entry["at"] = time.time() - 31 * 86400
    cache.write_text(json.dumps(old))
    assert measure() == 6
    device = measure_device("box", rank=RANK, cache=cache, model=tmp_path)
    assert (device.name, len(runs)) == ("box", 6)
    assert device.eager_seconds == pytest.approx(5e-3 / (6 * 12 + 65))  # of 6 layers, and the two ends
    assert device.resume_seconds == 1e-3
    assert 0 < device.memory <= FIGURES.memory_total


@pytest.mark.slow
def test_this_machine(tmp_path: Path) -> None:
    figures = measure_figures(
        rank=RANK, cache=tmp_path / "devices.json", model=tmp_path, unit="cpu", effort=replace(TINY, disk=8 << 20)
    )
    assert set(figures.flops) == {"fp32", "bf16", "fp16"}
    assert min(figures.memory_bandwidth, *figures.flops.values()) > 0
    assert 1e-8 < figures.launch_seconds < 1
    assert 50 << 20 < figures.runtime_bytes < 4 << 30
    assert figures.eager_seconds is not None
    assert 1e-8 < figures.eager_seconds < 0.1
    assert 0 <= figures.resume_seconds < 0.1


@pytest.mark.slow
def test_what_goes_wrong_in_the_other_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no device 'tpu' here, only"):
        measure_figures(rank=RANK, cache=tmp_path / "devices.json", unit="tpu", effort=TINY)
    with pytest.raises(PlanError, match=r"took longer than 0\.01 s"):
        measure_figures(rank=RANK, cache=tmp_path / "devices.json", effort=TINY, timeout=0.01)

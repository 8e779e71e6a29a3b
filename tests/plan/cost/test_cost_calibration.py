"""Calibration of the cost model by measurements of engines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ferrule.model import read_model
from ferrule.plan import BUILT_IN_ENGINE, DeviceSpec, Plan, Question, Runtime, Stage, Workload, make_plan, predict
from ferrule.plan.cluster.local import machine_of_ranks
from ferrule.plan.cost import (
    Calibration,
    Record,
    calibrate,
    calibrated,
    read_calibrations,
    read_records,
    record_of,
    save_calibrations,
    save_record,
)
from ferrule.plan.runtime import VLLM

SMALL, LARGE = read_model("llama-3.2-3b", weights="bfloat16"), read_model("llama-3.1-8b", weights="bfloat16")
DEVICE = DeviceSpec("here", 64 << 30, 20e9, {"bf16": 1e12}, kind="box", launch_seconds=5e-6, measured=True)
WORK = Workload(prompt=32)


def record(model: object, device: DeviceSpec, measured: float | None = None) -> Record:
    """As if the machine were ``device`` indeed, and believed to be DEVICE; or that took ``measured`` seconds."""
    plan = Plan((Stage((DEVICE.name,), 0, model.layers),))  # type: ignore[attr-defined]
    truth = predict(Question(model, machine_of_ranks(device, 1), WORK), plan)  # type: ignore[arg-type]
    found = record_of(Question(model, machine_of_ranks(DEVICE, 1), WORK), plan, measured or truth.token_seconds, at=1.0)
    assert found is not None
    return found


def test_one_record_tells_the_seconds_per_operation() -> None:
    truth = replace(DEVICE, launch_seconds=40e-6)
    (found,) = calibrate([record(SMALL, truth)], {"box": DEVICE})
    assert found.launch_seconds == pytest.approx(40e-6, rel=0.01)
    assert (found.speed, found.records) == (pytest.approx(1.0), 1)
    assert found.after < 0.001 < found.before
    again = calibrated(DEVICE, {"box": found})
    assert again.launch_seconds == found.launch_seconds


def test_what_an_operation_costs_from_python_counts_for_engines_that_start_them_so() -> None:
    plan = Plan((Stage((DEVICE.name,), 0, SMALL.layers),))

    def launch(device: DeviceSpec, runtime: Runtime) -> float:
        terms = predict(Question(SMALL, machine_of_ranks(device, 1), WORK, runtime=runtime), plan).terms
        return sum(term.seconds for term in terms if term.kind == "launch")

    slower = replace(DEVICE, eager_seconds=15e-6)
    assert launch(slower, BUILT_IN_ENGINE) == pytest.approx(3 * launch(DEVICE, BUILT_IN_ENGINE))
    assert launch(slower, VLLM) == launch(DEVICE, VLLM)
    # What was measured of whole models says more.
    (found,) = calibrate([record(SMALL, replace(DEVICE, launch_seconds=40e-6))], {"box": slower})
    again = calibrated(slower, {"box": found})
    assert launch(again, BUILT_IN_ENGINE) == pytest.approx(8 * launch(DEVICE, BUILT_IN_ENGINE), rel=0.01)


def test_records_of_two_models_tell_speed_and_operations_apart() -> None:
    truth = replace(DEVICE, memory_bandwidth=12e9, flops={"bf16": 0.6e12}, launch_seconds=100e-6)
    (found,) = calibrate([record(SMALL, truth), record(LARGE, truth)], {"box": DEVICE})
    assert found.after <= found.before
    again = calibrated(DEVICE, {"box": found})
    for model in (SMALL, LARGE):
        plan = Plan((Stage((DEVICE.name,), 0, model.layers),))
        ours, theirs = (
            predict(Question(model, machine_of_ranks(each, 1), WORK), plan).token_seconds for each in (again, truth)
        )
        assert ours == pytest.approx(theirs, rel=0.03)


def test_a_machine_that_is_faster_than_believed_gets_a_higher_speed() -> None:
    truth = replace(DEVICE, memory_bandwidth=40e9, launch_seconds=0.0)
    (found,) = calibrate([record(SMALL, truth)], {"box": DEVICE})
    assert 1.5 < found.speed <= 4.0
    assert found.launch_seconds >= 0


def test_an_absurd_record_does_not_make_another_machine_of_it() -> None:
    (found,) = calibrate([record(SMALL, DEVICE, measured=1e-6)], {"box": DEVICE})
    assert found.speed <= 4.0
    assert found.launch_seconds >= 0


def test_records_are_kept_and_damaged_ones_left_out(tmp_path: Path) -> None:
    one = record(SMALL, DEVICE)
    save_record(one, tmp_path)
    save_record(replace(one, at=2.0), tmp_path)
    assert [each.at for each in read_records(tmp_path)] == [1.0, 2.0]
    file = tmp_path / "planner-records.json"
    fields = json.loads(file.read_text())
    good = fields["records"][0]
    fields["records"] += [good | {"measured": -1}, good | {"moving": "much"}, {"at": 1}, 5]
    file.write_text(json.dumps(fields))
    assert len(read_records(tmp_path)) == 2
    file.write_text("{ not JSON")
    assert read_records(tmp_path) == []


def test_calibrations_are_kept_and_nonsense_is_not_used(tmp_path: Path) -> None:
    save_calibrations([Calibration("box", 1.5, 2e-6, 3, 0.2, 0.01)], tmp_path)
    assert read_calibrations(tmp_path)["box"].speed == 1.5
    assert calibrated(DEVICE, read_calibrations(tmp_path)).memory_bandwidth == 30e9
    save_calibrations([Calibration("box", 1e9, 2e-6, 3, 0.2, 0.01)], tmp_path)
    assert read_calibrations(tmp_path) == {}
    assert calibrated(DEVICE, {}) == DEVICE


def test_ranks_of_one_machine_share_it() -> None:
    cluster = machine_of_ranks(DEVICE, 4)
    assert sum(device.memory_bandwidth for device in cluster.devices) == DEVICE.memory_bandwidth
    assert {device.kind for device in cluster.devices} == {"box"}
    plan = make_plan(SMALL, tensor=2, pipeline=2)
    plan = plan.on([device.name for device in cluster.devices])
    assert plan.strategy == "hybrid"
    assert plan.devices == tuple(device.name for device in cluster.devices)
    assert [stage.last_layer for stage in plan.stages] == [shard.last_layer for shard in plan.shards[::2]]
    assert predict(Question(SMALL, cluster, WORK), plan).fits

"""The engine on emulated accelerators gives what transformers gives on a processor."""

from __future__ import annotations

from pathlib import Path

import pytest
from on_devices import batches, expected_logits, prompt, run_on
from tiny_models import CONFIGS, make

from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine, plug_in
from ferrule.engine.source import describe, read_config
from ferrule.plan import make_plan

SPLITS = [(1, 1), (2, 1), (1, 2), (2, 2)]


@pytest.fixture(autouse=True, params=[None, 0], ids=["late", "shuffled"])
def machines(request: pytest.FixtureRequest) -> list[Machine]:
    """Accelerators that do everything as late as possible, or in an order of their own."""
    open_device("emulated", 1)
    return [plug_in(Machine(index, seed=request.param)) for index in range(4)]


def check(name: str, directory: Path, tensor: int, pipeline: int) -> None:
    prompts = [prompt(1), prompt(2)]
    plan = make_plan(describe(directory, read_config(directory)), tensor=tensor, pipeline=pipeline)
    devices = [f"emulated:{rank}" for rank in range(plan.world_size)]
    found = run_on(directory, plan, devices, batches(prompts))
    assert (found - expected_logits(directory, prompts)).abs().max() < 1e-4, name


def test_logits_equal_those_of_one_processor(tmp_path: Path) -> None:
    check("llama", make("llama", tmp_path), 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_one_processor_for_every_architecture(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    for tensor, pipeline in SPLITS:
        if pipeline == 1 or describe(tmp_path, read_config(tmp_path)).pipeline_refusal is None:
            check(name, tmp_path, tensor, pipeline)

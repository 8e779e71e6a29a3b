"""The engine on emulated accelerators gives what transformers gives on a processor."""

from __future__ import annotations

from pathlib import Path

import pytest
from on_devices import batches, expected_logits, prompt, run_on
from plugged import plug_in
from tiny_models import CONFIGS, make

from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.engine.source import describe, read_config
from ferrule.plan import make_plan

SPLITS = [(1, 1), (2, 1), (1, 2), (2, 2)]
LATE, SHUFFLED = None, 0
"""Seeds: everything as late as possible, or in an order of its own."""


def plug_in_all(seed: int | None, *, unified: bool = False) -> None:
    open_device("emulated", 1)
    for index in range(4):
        plug_in(Machine(index, seed=seed, unified=unified))


def check(name: str, directory: Path, tensor: int, pipeline: int) -> None:
    prompts = [prompt(1), prompt(2)]
    plan = make_plan(describe(directory, read_config(directory)), tensor=tensor, pipeline=pipeline)
    devices = [f"emulated:{rank}" for rank in range(plan.world_size)]
    found = run_on(directory, plan, devices, batches(prompts))
    assert (found - expected_logits(directory, prompts)).abs().max() < 1e-4, name


def splits_of(directory: Path) -> list[tuple[int, int]]:
    refused = describe(directory, read_config(directory)).pipeline_refusal is not None
    return [split for split in SPLITS if split[1] == 1 or not refused]


@pytest.mark.parametrize(
    ("seed", "unified"), [(LATE, False), pytest.param(SHUFFLED, False, marks=pytest.mark.slow), (SHUFFLED, True)]
)
def test_logits_equal_those_of_one_processor(seed: int | None, unified: bool, tmp_path: Path) -> None:
    plug_in_all(seed, unified=unified)
    check("llama", make("llama", tmp_path), 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_one_processor_for_every_architecture(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    plug_in_all(LATE, unified=True)  # by which memory is spoilt later, too
    check(name, tmp_path, *splits_of(tmp_path)[-1])


@pytest.mark.soak
@pytest.mark.parametrize("seed", [LATE, SHUFFLED])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_split_of_every_architecture(name: str, seed: int | None, tmp_path: Path) -> None:
    make(name, tmp_path)
    for split in splits_of(tmp_path):
        plug_in_all(seed)
        check(name, tmp_path, *split)

"""The Triton kernel equals the formats' formula, in Triton's interpreter, and compiles for GPUs that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from interpreted_product import CASES, STACK_ROWS

from ferrule.engine.selftest.device_check import random_groups
from ferrule.engine.weights.device_matrix import hold
from ferrule.model.packing import GroupLayout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]

HERE = Path(__file__).parent


def run(script: str, *arguments: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, HERE / script, *arguments],
        capture_output=True, text=True, timeout=300, env=environment | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    found: dict[str, float] = json.loads(run("interpreted_product.py", TRITON_INTERPRET="1"))
    return found


@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_the_numbers(name: str, errors: dict[str, float]) -> None:
    assert errors[name] < (2e-3 if CASES[name][-1] == "float16" else 1e-5)


@pytest.mark.parametrize("rows", STACK_ROWS)
def test_rows_take_the_matrix_of_their_expert(rows: int, errors: dict[str, float]) -> None:
    assert errors[f"a stack, {rows} rows"] < 1e-5


@pytest.mark.parametrize(("group", "takes"), [(48, False), (0, True), (16, True), (96, True)])
def test_groups_that_are_no_power_of_two_are_left_to_torch(group: int, takes: bool) -> None:
    from ferrule.engine.weights.triton_product import fits

    groups = random_groups(GroupLayout(8, group, "f32", zero=128), 4, 96)
    assert fits(hold(groups, torch.float32, torch.device("cpu")).packed) == takes


@pytest.mark.parametrize(
    ("backend", "architecture"),
    [("cuda", "80"), ("cuda", "90"), ("cuda", "121"), ("hip", "gfx1100"), ("hip", "gfx1151")],
)
def test_it_compiles_for_gpus_that_are_not_here(backend: str, architecture: str) -> None:
    sizes = [int(line) for line in run("compiled_product.py", backend, architecture).split()]
    assert len(sizes) == 3
    assert min(sizes) > 1000

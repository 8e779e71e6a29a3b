"""Packed weights on emulated accelerators: held packed there, and multiplied as their numbers would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from on_devices import batches, expected_logits, prompt, run_on
from packed_models import packed_model
from plugged import plug_in
from test_format_splits import MAKERS, in_products
from tiny_models import make

from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.selftest.device_check import random_groups
from ferrule.engine.source import describe, read_config
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.device_matrix import DeviceMatrix, pack_on
from ferrule.engine.weights.groups import GroupedMatrix
from ferrule.engine.weights.matrix import Piece
from ferrule.engine.weights.slicing import columns
from ferrule.model.gguf.types import LAYOUTS
from ferrule.model.packing import PACKED_VALUES, GroupLayout
from ferrule.plan import make_plan
from ferrule.staging import Uploads

SPLITS = [(1, 1), (2, 1), (1, 2)]
LAYOUT = {
    **LAYOUTS,
    "zero points": GroupLayout(4, 32, "f16", offsets=True, zero_points=True),
    "a row": GroupLayout(8, 0, "bf16", zero=128),
    "nf4": GroupLayout(4, 64, "f32", values="nf4"),
    "e4m3": GroupLayout(8, 32, "f32", values="e4m3"),
    "e5m2": GroupLayout(8, 32, "f32", values="e5m2"),
}


@pytest.fixture(autouse=True)
def machines() -> list[Machine]:
    open_device("emulated", 1)
    return [plug_in(Machine(index)) for index in range(4)]


class Whole(Piece):
    """A piece whose groups are given."""

    def __init__(self, groups: GroupedMatrix) -> None:
        object.__setattr__(self, "given", groups)

    @property
    def part(self) -> Any:
        from ferrule.engine.weights.groups import rectangle

        return rectangle(self.given.codes.shape, None)  # type: ignore[attr-defined]

    def groups(self, part: Any, source: Any) -> GroupedMatrix:
        return self.given  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("name", LAYOUT)
def test_numbers_on_the_device_are_those_of_the_format(name: str) -> None:
    layout = LAYOUT[name]
    assert layout.values in PACKED_VALUES
    device = open_device("emulated", 1)
    groups = random_groups(layout, 24, 512)
    matrix = pack_on(Whole(groups), None, torch.float32, Uploads(device.torch_device))  # type: ignore[arg-type]
    assert matrix is not None
    found = device.download(matrix.multiply(device.upload(torch.eye(512))))
    assert torch.equal(found.T, torch.from_numpy(groups.numbers()))
    assert matrix.bytes < 24 * 512 * (0.8 if layout.bits <= 4 else 1.4)


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_quantised_on_load_are_held_packed(weights: str, split: tuple[int, int], tmp_path: Path) -> None:
    make("llama", tmp_path / "m", hidden_size=64, intermediate_size=128)
    plan = make_plan(describe(tmp_path / "m", read_config(tmp_path / "m")), tensor=split[0], pipeline=split[1])
    given = batches([prompt(1), prompt(2)])
    found = run_on(tmp_path / "m", plan, [f"emulated:{rank}" for rank in range(4)], given, weights=weights)
    # The processor's own numbers, without its products of 8-bit activations.
    expected = run_on(tmp_path / "m", plan, ["cpu"] * 4, given, weights=weights)
    assert (found - expected).abs().max() < 1e-4


def test_a_slice_is_read_as_packed_and_no_more_memory_is_used(tmp_path: Path, machines: list[Machine]) -> None:
    make("llama", tmp_path, hidden_size=64, intermediate_size=512)
    device = open_device("emulated", 1)
    with Checkpoint(tmp_path, "int4") as checkpoint:
        weight = checkpoint.tensors["model.layers.0.mlp.down_proj.weight"]
        cut, uploads = columns(512, 1, (256, 512)), Uploads(device.torch_device)
        matrix = weight.format.pack(weight, cut, checkpoint, torch.float32, uploads)
    assert isinstance(matrix, DeviceMatrix)
    assert matrix.shape == (64, 256)
    assert matrix.bytes == 64 * 256 // 2 + 64 * 8 * 2 == machines[0].used


@pytest.mark.slow
@pytest.mark.parametrize(("name", "split"), [*((name, (2, 1)) for name in MAKERS), ("gptq", (1, 1)), ("gptq", (2, 2))])
def test_every_format_gives_the_logits_of_its_numbers(name: str, split: tuple[int, int], tmp_path: Path) -> None:
    settings, quantise = MAKERS[name]
    experts = {"num_experts": 4, "moe_intermediate_size": 64, "mlp_only_layers": [1]}
    directory = packed_model(tmp_path / "m", settings, in_products(quantise), family="qwen3_moe", **experts)
    plan = make_plan(describe(directory, read_config(directory)), tensor=split[0], pipeline=split[1])
    prompts = [prompt(1), prompt(2)]
    found = run_on(directory, plan, [f"emulated:{rank}" for rank in range(4)], batches(prompts))
    assert (found - expected_logits(tmp_path / "m-plain", prompts)).abs().max() < 1e-4


@pytest.mark.parametrize("experts", [4, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_experts_stay_packed_and_give_the_logits_of_their_numbers(
    device: str, experts: int, tmp_path: Path, machines: list[Machine]
) -> None:
    settings, quantise = MAKERS["gptq"]
    wide = {"num_experts": experts, "moe_intermediate_size": 64, "mlp_only_layers": [], "num_hidden_layers": 1}
    directory = packed_model(tmp_path / "m", settings, in_products(quantise), family="qwen3_moe", **wide)
    plan = make_plan(describe(directory, read_config(directory)))
    prompts = [prompt(1), prompt(2)]  # more rows than 4 experts, and fewer than 64
    runner: list[TorchRunner] = []
    found = run_on(directory, plan, [device], batches(prompts), runners=runner)
    assert (found - expected_logits(tmp_path / "m-plain", prompts)).abs().max() < 1e-4
    kernel = "native code" if device == "cpu" else "torch's operations"
    assert runner[0].device_title.endswith(f", transformers, packed weights by {kernel}")
    held = runner[0].model.base.layers[0].mlp.experts  # type: ignore[index, union-attr]
    assert (held.gate_up_proj.shape, held.down_proj.shape) == ((experts, 128, 64), (experts, 64, 64))  # type: ignore[union-attr]
    assert held.down_proj.bytes < experts * 64 * 64  # type: ignore[union-attr, operator]
    if device == "emulated":
        machines[0].waits.clear()
        runner[0].run(batches(prompts)[0])
        assert machines[0].waits == {}, "which experts are chosen is not waited for"

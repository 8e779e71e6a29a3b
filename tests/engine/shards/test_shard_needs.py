"""Bytes said to be needed are those that loading reads: the rest may be anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_parity import plan_for
from thread_group import Shared, ThreadGroup, run_ranks
from tiny_models import REQUIRED, make

from ferrule.engine.devices import open_device
from ferrule.engine.rank.model import build
from ferrule.engine.shards.needs import needs
from ferrule.engine.shards.weight_files import Reader, read_layout
from ferrule.plan import Plan


def only_needed(directory: Path, plan: Plan, rank: int, copy: Path) -> Path:
    """A copy of the model whose weights are ones' bits (NaN) wherever ``rank`` does not need them."""
    shutil.copytree(directory, copy)
    layout = read_layout(directory)
    places = layout.places()
    for file in layout.files:
        content = bytearray(file.head + b"\xff" * (file.size - len(file.head)))
        for key, data in file.states.items():
            content[places[key].offset : places[key].offset + len(data)] = data
        (copy / file.name).write_bytes(content)
    with Reader(directory, places) as reader:
        for piece in needs(directory, "float32", plan.shards[rank]):
            place, data, at = places[piece.key], reader.read(piece), 0
            with (copy / place.file).open("r+b") as file:
                for offset, length in piece.runs(place.view(piece.dim)):
                    file.seek(place.offset + offset)
                    file.write(data[at : at + length])
                    at += length
    return copy


def parameters(directories: list[Path], plan: Plan) -> list[dict[str, torch.Tensor]]:
    stages = [Shared(plan.tensor) for _ in range(plan.pipeline)]

    def rank(world: ThreadGroup) -> dict[str, torch.Tensor]:
        shard = plan.shards[world.rank]
        group: Any = ThreadGroup(shard.part, stages[shard.stage])
        model = build(directories[world.rank], "float32", shard, group, open_device("cpu", 1), lambda done, total: None)
        return dict(model.model.state_dict())

    return run_ranks(plan.world_size, rank)


def check(name: str, tmp_path: Path) -> None:
    directory = make(name, tmp_path / name)
    plan = plan_for(directory, 2, 2)
    copies = [only_needed(directory, plan, rank, tmp_path / f"{name}-{rank}") for rank in range(plan.world_size)]
    whole, part = parameters([directory] * plan.world_size, plan), parameters(copies, plan)
    for one, other in zip(whole, part, strict=True):
        assert one.keys() == other.keys()
        assert [key for key in one if not torch.equal(one[key], other[key])] == []


def test_a_rank_loads_from_the_parts_it_needs(tmp_path: Path) -> None:
    check("qwen3_moe", tmp_path)


def test_columns_are_cut_at_the_groups_that_weights_get_when_they_are_loaded(tmp_path: Path) -> None:
    directory = make("llama", tmp_path, intermediate_size=160, num_hidden_layers=1, head_dim=32)
    shard = plan_for(directory, 3, 1).shards[1]

    def columns(weights: str | None) -> set[tuple[int, int]]:
        pieces = needs(directory, "float32", shard, weights)
        return {(each.start, each.stop) for each in pieces if each.key.endswith("mlp.down_proj.weight")}

    assert columns(None) == {(64, 112)}
    assert columns("int4") == {(64, 128)}


@pytest.mark.slow
def test_a_rank_of_every_architecture_loads_from_the_parts_it_needs(tmp_path: Path) -> None:
    for name in REQUIRED:
        check(name, tmp_path)

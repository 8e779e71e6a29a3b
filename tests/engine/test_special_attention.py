"""Families whose attention is not the usual one: several sequences at different places in one batch, long prompts, and
what their caches take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from on_devices import logits_of
from tiny_models import make
from transformers import AutoModelForCausalLM

from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine, plug_in
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.source import describe, read_config
from ferrule.plan import make_plan

SPECIAL: dict[str, dict[str, Any]] = {"llama4_text": {}}
LONG = 8192
STEPS: tuple[tuple[tuple[int, int, int], ...], ...] = (
    ((0, 0, 13),),
    ((0, 13, 6), (1, 0, 9)),
    ((1, 9, 1), (0, 19, 1), (2, 0, 2)),
    ((2, 2, 20), (1, 10, 5)),
)
"""Batches of (sequence, tokens seen, tokens new)."""


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(3, 131, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def check(directory: Path, steps: Sequence[Sequence[tuple[int, int, int]]], split: tuple[int, int], kind: str) -> None:
    """Logits behind every piece of each sequence equal those of transformers for that sequence alone."""
    plan = make_plan(describe(directory, read_config(directory)), tensor=split[0], pipeline=split[1])
    pieces = [piece for step in steps for piece in step]
    lengths = {number: max(seen + new for each, seen, new in pieces if each == number) for number, _, _ in pieces}
    prompts = {number: tokens(length, number) for number, length in lengths.items()}
    given = [
        Batch(
            tuple(Span(number, seen, new, True) for number, seen, new in step),
            tuple(token for number, seen, new in step for token in prompts[number][seen : seen + new]),
        )
        for step in steps
    ]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        rows = {number: model(torch.tensor([ids])).logits[0] for number, ids in prompts.items()}
    devices = [f"{kind}:{rank}" if kind != "cpu" else kind for rank in range(plan.world_size)]
    found = torch.cat(logits_of(directory, plan, devices, given))
    expected = torch.stack([rows[number][seen + new - 1] for number, seen, new in pieces])
    assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    "name", [name if name == "llama4_text" else pytest.param(name, marks=pytest.mark.slow) for name in SPECIAL]
)
def test_sequences_at_different_places_of_one_batch(name: str, tmp_path: Path) -> None:
    make(name, tmp_path, **SPECIAL[name])
    open_device("emulated", 1)
    plug_in(Machine(0, seed=0))
    for kind in ("cpu", "emulated"):
        check(tmp_path, STEPS, (1, 1), kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIAL)
def test_a_prompt_of_8192_tokens(name: str, tmp_path: Path) -> None:
    make(name, tmp_path, **{"num_hidden_layers": 2, "max_position_embeddings": LONG} | SPECIAL[name])
    check(tmp_path, (((0, 0, 4096),), ((0, 4096, 4095), (1, 0, 40)), ((1, 40, 1), (0, 8191, 1))), (1, 1), "cpu")

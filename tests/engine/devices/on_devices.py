"""Run a split model on devices, each rank in a thread with one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from thread_group import Shared, ThreadGroup, run_ranks
from transformers import AutoModelForCausalLM

from ferrule.engine.devices import open_device
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.plan import Plan

PIECES = ((0, 13), (13, 19), (19, 20))
"""A prompt goes in as a long piece, a piece with a past, and a single token: each takes another path."""
TOKENS = 20


def prompt(seed: int = 1) -> list[int]:
    return torch.randint(3, 131, (TOKENS,), generator=torch.Generator().manual_seed(seed)).tolist()


def batches(prompts: Sequence[list[int]]) -> list[Batch]:
    """All of ``prompts`` side by side, piece by piece, with the logits after each piece."""
    found = []
    for start, stop in PIECES:
        spans = tuple(Span(7 + number, start, stop - start, True) for number in range(len(prompts)))
        found.append(Batch(spans, tuple(token for each in prompts for token in each[start:stop])))
    return found


def expected_logits(directory: Path, prompts: Sequence[list[int]], dtype: str = "float32") -> torch.Tensor:
    """(pieces, prompts, vocabulary), by transformers in one process."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    with torch.inference_mode():
        logits = model(torch.tensor(prompts)).logits.float()
    return torch.stack([logits[:, stop - 1] for _, stop in PIECES])


def make_runners(
    directory: Path, plan: Plan, devices: Sequence[str], dtype: str, weights: str | None, world: ThreadGroup,
    stages: Sequence[Shared],
) -> TorchRunner:  # fmt: skip
    shard = plan.shards[world.rank]
    stage: Any = ThreadGroup(shard.part, stages[shard.stage])
    options = RankOptions(str(directory), dtype, plan, 1, 128, 4, 64, (), weights=weights)
    everyone: Any = world
    alike = not any(name.startswith("cpu") for name in devices[: plan.world_size])
    return TorchRunner(options, everyone, stage, open_device(devices[world.rank], 1), alike=alike)


def run_on(
    directory: Path,
    plan: Plan,
    devices: Sequence[str],
    given: Sequence[Batch],
    dtype: str = "float32",
    weights: str | None = None,
    runners: list[TorchRunner] | None = None,
) -> torch.Tensor:
    """The driver's logits after each of ``given``, stacked. The runners are added to ``runners``."""
    found = logits_of(directory, plan, devices, given, dtype, weights, runners)
    return torch.stack(found) if found else torch.empty(0)


def logits_of(
    directory: Path,
    plan: Plan,
    devices: Sequence[str],
    given: Sequence[Batch],
    dtype: str = "float32",
    weights: str | None = None,
    runners: list[TorchRunner] | None = None,
) -> list[torch.Tensor]:
    """The driver's logits after each of ``given``."""
    stages = [Shared(plan.tensor) for _ in range(plan.pipeline)]

    def rank(world: ThreadGroup) -> list[torch.Tensor]:
        runner = make_runners(directory, plan, devices, dtype, weights, world, stages)
        if runners is not None:
            runners.append(runner)
        found = (runner.run(batch) for batch in given)
        return [runner.device.download(logits) for logits in found if logits is not None]

    found: list[torch.Tensor] = run_ranks(plan.world_size, rank)[plan.driver]
    return found

"""Models that take images, cut over ranks, must answer as transformers does in one process.

Ranks are threads here (see thread_group), with the scheduler of a served model; tests/e2e runs processes.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from seeing_models import CONFIGS, IMAGE, image, make, prompt_of
from thread_group import Shared, ThreadGroup, run_ranks
from transformers import AutoModelForImageTextToText

from ferrule.engine.devices import open_device
from ferrule.engine.options import Adapter, RankOptions
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.scheduler import Scheduler
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.rank.vision.incoming import features_of
from ferrule.engine.rank.vision.sights import seeing_of
from ferrule.engine.source import describe, read_config
from ferrule.engine.types import ImagePrompt, SamplingParams
from ferrule.errors import ModelError
from ferrule.model import Share
from ferrule.plan import Plan, make_plan

COUNT = 8


def served(
    directory: Path,
    plan: Plan,
    prompts: Mapping[int, ImagePrompt],
    limits: Limits,
    adapters: tuple[Adapter, ...] = (),
) -> tuple[dict[int, list[int]], dict[int, torch.Tensor], int]:
    """Greedy answers on the ranks of ``plan``, the logits of their first tokens, and the number of batches."""
    stages = [Shared(plan.tensor) for _ in range(plan.pipeline)]
    announced: list[queue.Queue[Batch | None]] = [queue.Queue() for _ in range(plan.world_size)]

    def rank(world: ThreadGroup) -> Any:
        shard = plan.shards[world.rank]
        everyone: Any = world
        stage: Any = ThreadGroup(shard.part, stages[shard.stage])
        options = RankOptions(str(directory), "float32", plan, 1, 256, 4, 64, (), adapters=adapters)
        runner = TorchRunner(options, everyone, stage, open_device("cpu", 1))
        share, vocabulary = Share.even(plan.tensor), describe(directory, read_config(directory))
        held = vocabulary.rank_bytes(
            share,
            vocabulary.vocabulary_share(plan.tensor),
            first_layer=shard.first_layer,
            last_layer=shard.last_layer,
        )
        assert adapters or runner.weight_bytes == held, "the planner counts what a rank holds"
        if world.rank == plan.driver:
            return drive(runner)
        while (batch := announced[world.rank].get(timeout=60)) is not None:
            assert runner.run(batch) is None
        return None

    def drive(runner: TorchRunner) -> tuple[dict[int, list[int]], dict[int, torch.Tensor], int]:
        scheduler, seeing = Scheduler(limits, frozenset()), seeing_of(directory)
        assert seeing is not None
        for number, prompt in prompts.items():
            sights = seeing.sights(prompt.tokens, prompt.images) if prompt.images else None
            params = SamplingParams(max_tokens=COUNT, temperature=0.0)
            scheduler.add(number, prompt.tokens, params, sights=sights, adapter=len(adapters))
        answers: dict[int, list[int]] = {number: [] for number in prompts}
        first: dict[int, torch.Tensor] = {}
        batches = 0
        while (batch := scheduler.next_batch()) is not None:
            batches += 1
            for other in set(range(plan.world_size)) - {plan.driver}:
                announced[other].put(batch)
            logits = runner.run(batch, features_of(batch, lambda number: scheduler.by_identity[number].sights))
            assert logits is not None
            for span, row in zip([span for span in batch.spans if span.sample], logits, strict=True):
                first.setdefault(span.sequence, row.clone())
            for sequence, token, _ in scheduler.complete(batch, logits.argmax(1).tolist()):
                answers[sequence.identity].append(token)
        for other in set(range(plan.world_size)) - {plan.driver}:
            announced[other].put(None)
        return answers, first, batches

    return next(found for found in run_ranks(plan.world_size, rank) if found is not None)


def by_transformers(
    directory: Path, prompt: ImagePrompt, count: int = COUNT, adapter: Path | None = None
) -> tuple[list[int], torch.Tensor]:
    """The greedy answer of transformers' own generation, and the logits of its first token."""
    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
    given: dict[str, Any] = {}
    for name in prompt.images[0].features if prompt.images else ():
        kinds = [each.features[name] for each in prompt.images]
        tensors = [
            torch.frombuffer(bytearray(one.data), dtype=getattr(torch, one.dtype)).view(one.shape) for one in kinds
        ]
        if name == "pixel_values" and "image_sizes" in prompt.images[0].features:  # they are filled up to be as large
            high, wide = (max(each.shape[axis] for each in tensors) for axis in (2, 3))
            tensors = [
                torch.nn.functional.pad(each, (0, wide - each.shape[3], 0, high - each.shape[2])) for each in tensors
            ]
        given[name] = torch.cat(tensors)
    ids = torch.tensor([prompt.tokens])
    if prompt.images and "image_sizes" not in given:
        told = "mm_token_type_ids" if "image_grid_thw" in given else "token_type_ids"
        given[told] = (ids == IMAGE).int()
    found = model.generate(
        input_ids=ids, **given, max_new_tokens=count, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    return found.sequences[0, ids.shape[1] :].tolist(), found.logits[0][0]


def prompts_of(directory: Path) -> dict[int, ImagePrompt]:
    """Two images of different sizes with text around them, one that begins the prompt, and text alone."""
    one, two, three = image(40, 24, 1), image(20, 60, 2, "JPEG"), image(33, 33, 3)
    return {
        1: prompt_of(directory, [5, 17, 99, one, 42, 8, two, 77, 6, 31]),
        2: prompt_of(directory, [11, 12, 13, 14]),
        3: prompt_of(directory, [three, 9]),
    }


_EXPECTED: dict[Path, dict[int, tuple[list[int], torch.Tensor]]] = {}


def check(directory: Path, splits: Sequence[tuple[int, int]], limits: Sequence[Limits]) -> None:
    prompts = prompts_of(directory)
    if directory not in _EXPECTED:
        _EXPECTED[directory] = {number: by_transformers(directory, prompt) for number, prompt in prompts.items()}
    for tensor, pipeline in splits:
        plan = make_plan(describe(directory, read_config(directory)), tensor=tensor, pipeline=pipeline)
        batches = []
        for limit in limits:
            answers, logits, count = served(directory, plan, prompts, limit)
            batches.append(count)
            for number, (tokens, first) in _EXPECTED[directory].items():
                assert (logits[number] - first).abs().max() < 1e-4, (number, tensor, pipeline)
                assert answers[number] == tokens, (number, tensor, pipeline)
        assert batches == sorted(set(batches)), "the prompts are computed in pieces, or twice"


WHOLE = Limits(batch_tokens=256, cache_tokens=1000, sequences=8, context=256)
PIECES = Limits(batch_tokens=11, cache_tokens=1000, sequences=8, context=256)
CROWDED = Limits(batch_tokens=11, cache_tokens=70, sequences=8, context=256)
"""Sequences are preempted, and computed again."""


def test_images_are_answered_as_by_transformers_in_pieces_on_ranks(tmp_path: Path) -> None:
    check(make("qwen3_vl", tmp_path), [(2, 2)], [PIECES])


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_images_are_answered_as_by_transformers(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    check(tmp_path, [(1, 1)], [WHOLE, PIECES])
    check(tmp_path, [(2, 1), (1, 2)], [PIECES])
    check(tmp_path, [(2, 2)], [CROWDED])


@pytest.mark.slow
def test_adapters_change_the_language_model_and_not_what_sees(tmp_path: Path) -> None:
    directory = make("qwen3_vl", tmp_path / "base")
    plan = make_plan(describe(directory, read_config(directory)), tensor=2)
    for name, targets in (("language", r".*language_model.*(q_proj|down_proj)"), ("seeing", r".*visual.*qkv")):
        base = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
        tuned = get_peft_model(base, LoraConfig(r=4, lora_alpha=12, target_modules=targets))
        for key, parameter in tuned.named_parameters():
            if "lora_" in key:
                torch.nn.init.normal_(parameter, std=0.1)
        tuned.save_pretrained(tmp_path / name)
    prompts = {number: prompt for number, prompt in prompts_of(directory).items() if number != 2}
    answers, logits, _ = served(directory, plan, prompts, PIECES, (Adapter("tuned", str(tmp_path / "language")),))
    for number, prompt in prompts.items():
        tokens, first = by_transformers(directory, prompt, adapter=tmp_path / "language")
        assert (logits[number] - first).abs().max() < 1e-4
        assert (first - by_transformers(directory, prompt)[1]).abs().max() > 0.1
        assert answers[number] == tokens
    with pytest.raises(ModelError, match=r"adapts model.visual.blocks.0.attn.qkv, a part of what sees"):
        served(directory, plan, prompts, PIECES, (Adapter("tuned", str(tmp_path / "seeing")),))

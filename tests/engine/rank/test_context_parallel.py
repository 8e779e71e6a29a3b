"""Ranks that hold a model whole and share out keys and values by pages answer as one rank does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from in_threads import on_plan, thread_groups
from prefix_ranks import BEGINNING, add, answers, prompt
from tiny_adapters import make_adapter
from tiny_models import make

from ferrule.engine.devices import open_device
from ferrule.engine.devices.cpu import CpuDevice
from ferrule.engine.messages import Cancel
from ferrule.engine.options import EngineOptions, RankOptions, parse_adapters
from ferrule.engine.rank.batch import Batch, Kind, Span
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.runner import choose_runner
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.source import describe, read_config
from ferrule.errors import ConfigError, PlanError
from ferrule.fabric import Group
from ferrule.plan import BLOCK_PAGES, Plan, Stage, make_plan, shares_out

FAMILIES = ("llama", "qwen3", "qwen3_moe", "gpt_oss")
MORE = ("gemma2", "deepseek_v3", "mistral", "glm4_moe")
"""Those with bounded logits, latents, a window."""


def plan_of(directory: Path, context: int, pipeline: int = 1) -> Plan:
    return make_plan(describe(directory, read_config(directory)), context=context, pipeline=pipeline)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*FAMILIES, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)])
def test_prompts_longer_than_one_ranks_cache_are_answered_as_by_one_rank(name: str, ranks: int, tmp_path: Path) -> None:
    directory, room = make(name, tmp_path), 240
    requests = [
        add(1, prompt(5, 150), max_tokens=40),  # over borders of pages
        add(2, (*BEGINNING, 7), max_tokens=20),
        add(3, prompt(6, 3), max_tokens=40),
    ]
    expected = answers(directory, requests)
    found = answers(directory, requests, plan=plan_of(directory, ranks), cache_tokens=room)
    assert found.tokens == expected.tokens
    assert len(requests[0].prompt) > room / ranks
    assert shares_out(64, ranks), "pieces of prompts are, and answers are not"
    assert not shares_out(3, ranks)


def turns() -> list[Any]:
    """Requests that begin alike; then more than there is room for, of which one is cancelled."""
    return [
        [add(1, BEGINNING)],
        [add(2, BEGINNING), add(3, (*BEGINNING[:130], 7, 8, 9), max_tokens=20)],
        [add(11, BEGINNING), add(12, prompt(12, 150), max_tokens=50), Cancel(12)],
        [add(21, prompt(21, 120), max_tokens=40), add(22, (*BEGINNING, 9)), add(23, prompt(23, 60), max_tokens=60)],
    ]


@pytest.mark.parametrize(
    ("name", "context", "pipeline"),
    [
        ("llama", 2, 1),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("llama", 3, 1), ("qwen3_moe", 2, 2), ("gpt_oss", 5, 1), ("deepseek_v3", 4, 1))
        ),
    ],
)
def test_what_prompts_have_in_common_is_computed_once_and_sequences_give_way(
    name: str, context: int, pipeline: int, tmp_path: Path
) -> None:
    directory = make(name, tmp_path)
    expected = answers(directory, *turns(), prefix_cache=False)
    found = answers(directory, *turns(), plan=plan_of(directory, context, pipeline), cache_tokens=256)
    for number, tokens in expected.tokens.items():
        answered = found.tokens.get(number, [])
        assert answered == (tokens[: len(answered)] if number == 12 else tokens)
    assert found.cached[2] == found.cached[3] == 2 * BLOCK


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache", ["auto", "int8"])
def test_guesses_adapters_and_quantised_caches_go_with_it(kv_cache: str, tmp_path: Path) -> None:
    directory = make("llama", tmp_path / "model")
    adapters = parse_adapters([f"one={make_adapter(directory, tmp_path / 'one')}"])
    repeated = prompt(4, 9) * 8
    requests = [add(1, repeated, max_tokens=40), add(2, BEGINNING, max_tokens=20, adapter="one")]
    options: dict[str, Any] = {"adapters": adapters, "kv_cache": kv_cache, "speculate": 4}
    expected = answers(directory, requests, **options)
    assert answers(directory, requests, plan=plan_of(directory, 2), **options).tokens == expected.tokens


def test_all_rows_of_a_batch_that_is_shared_out_can_be_wanted(tmp_path: Path) -> None:
    """Logits of prompts' tokens, and of embeddings the hidden states, of which each rank has made a part."""
    directory, ids = make("llama", tmp_path), prompt(9, 75)
    batches = (
        Batch((Span(1, 0, 40, False, scored=True), Span(2, 0, 35, True)), ids),
        Batch((Span(3, 0, 75, False),), ids, kind=Kind.EMBED),
    )

    def rows(plan: Plan) -> list[torch.Tensor]:
        options = RankOptions(str(directory), "float32", plan, 1, 128, 4, 128, ())

        def body(world: Group, stage: Group) -> list[torch.Tensor] | None:
            runner = StepRunner(options, world, stage, open_device("cpu", 1))
            found = [runner.run(batch) for batch in batches]
            return None if found[0] is None else [each for each in found if each is not None]

        return next(each for each in on_plan(plan, body) if each is not None)

    for one, two in zip(rows(plan_of(directory, 1)), rows(plan_of(directory, 2)), strict=True):
        assert one.shape == two.shape
        assert (one - two).abs().max() < 1e-5


def test_two_ranks_take_a_prompt_that_one_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the memory that is free where each is, not by what a test says."""
    directory, asked = make("llama", tmp_path), [add(1, prompt(8, 230), max_tokens=20)]
    expected = answers(directory, asked)
    bytes_of_token = 4 * 4 * (8 + 16) * 4
    monkeypatch.setattr(CpuDevice, "memory_free", lambda device: 4 * 200 * bytes_of_token)  # of each host: 200 tokens
    monkeypatch.setattr("ferrule.engine.rank.warm_up.sharing", lambda world, memory: 1)
    assert answers(directory, [add(1, prompt(8, 30))]).driver.scheduler.limits.cache_tokens < 230
    found = answers(directory, asked, plan=plan_of(directory, 2), prefix_cache=False)
    assert found.driver.scheduler.limits.context >= 250
    assert found.tokens == expected.tokens


@pytest.mark.parametrize(("ranks", "prefix_cache", "part"), [(2, True, 2), (3, True, 2), (3, False, 3), (4, True, 4)])
def test_a_token_takes_a_part_of_its_bytes_on_each_rank(
    ranks: int, prefix_cache: bool, part: int, tmp_path: Path
) -> None:
    """Of blocks no rank has more pages than are counted."""
    plan = plan_of(make("llama", tmp_path), ranks)
    options = RankOptions(str(tmp_path), "float32", plan, 1, 128, 4, 64, (), prefix_cache=prefix_cache)

    def counted(world: Group, stage: Group) -> tuple[int, int]:
        runner = StepRunner(options, world, stage, open_device("cpu", 1))
        return runner.cache_bytes_per_token(0), runner.program.bytes_per_token

    for each, whole in on_plan(plan, counted):
        assert each == -(-whole // part)
    assert max(-(-(BLOCK_PAGES - rank) // ranks) for rank in range(ranks)) * part <= BLOCK_PAGES or not prefix_cache


def test_what_is_not_done_is_refused_by_name(tmp_path: Path) -> None:
    for wrong, why in (
        ({"tensor": 2}, "leave --tp, --shares out"),
        ({"device": "cuda"}, "leave --device cuda out"),
        ({"context_parallel": 3, "prefix_disk": 1 << 30}, "use --cp 2 or --cp 4"),
        ({"context_parallel": 17}, "more than the 16 ranks"),
    ):
        options: dict[str, Any] = {"context_parallel": 2, **wrong}
        with pytest.raises(ConfigError, match=why):
            EngineOptions("demo", **options)
    directory = make("olmo2", tmp_path)
    spec = describe(directory, read_config(directory))
    with pytest.raises(PlanError, match="--cp 2: Olmo2ForCausalLM has no native step program"):
        make_plan(spec, context=2)
    plan = Plan((Stage(("a", "b"), 0, spec.layers, make_plan(spec).stages[0].shares * 2, context=True),))
    worlds = thread_groups(2)
    options_of_rank = RankOptions(str(directory), "float32", plan, 1, 128, 4, 64, ())
    with pytest.raises(PlanError, match="--cp 2: keys and values are shared out by native step programs only"):
        choose_runner(options_of_rank, worlds[0], worlds[0], lambda _: None)
    for world in worlds:
        world.close()

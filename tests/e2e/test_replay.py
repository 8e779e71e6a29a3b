"""Answers of every family of models go on after a rank was killed: what it kept of a sequence is computed again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tiny_models import CONFIGS, RECURRENT, long_rope, make

from ferrule.engine import EngineOptions, LocalEngine, SamplingParams, start
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.source import describe, read_config
from ferrule.plan import make_plan

TOKENS, KILLED_AT = 40, 20
PROMPTS = ([5, 17, 99, 42, 8, 77, 23, 64, 12, 90, 31, 7, 55], [11, 3, 120])
PARAMS = (
    SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=TOKENS, temperature=1.0, seed=3, presence_penalty=0.5, ignore_eos=True),
)
QUICK = {("qwen3_next", (2, 1))}
"""A recurrent state beside keys, cut over ranks; and compressed entries, with several hidden states between stages."""
CHANGES: dict[str, dict[str, Any]] = {
    "phi3": long_rope(20),  # each answer crosses it: before the kill, and after
    "gemma3n_text": {"num_hidden_layers": 4, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0]},
}
WHOLE = ("gemma3n_text", "falcon_h1")
"""Run on one rank only."""
ONE_STAGE = ("glm_moe_dsa", "phimoe")
CASES = [
    pytest.param(
        name, split, id=f"{name}-{split[0]}x{split[1]}",
        marks=pytest.mark.slow if (name, split) in QUICK else pytest.mark.soak,
    )
    for name in (*CONFIGS, *RECURRENT)
    for split in ([(1, 1)] if name in WHOLE else [(2, 1)] if name in ONE_STAGE else [(2, 1), (1, 2)])
]  # fmt: skip


async def answers(
    engine: LocalEngine, victim: int | None = None, prompts: Sequence[Sequence[int]] = PROMPTS
) -> list[list[int]]:
    """Of all prompts at once; a rank is killed in the midst of them."""

    async def one(number: int) -> list[int]:
        made: list[int] = []
        async for token in engine.generate(prompts[number], PARAMS[number]):
            made.append(token.id)
            if victim is not None and number == 0 and len(made) == KILLED_AT:
                os.kill(engine.ranks[victim].pid, signal.SIGKILL)
        return made

    return list(await asyncio.gather(*map(one, range(len(prompts)))))


@pytest.mark.parametrize(("name", "split"), CASES)
def test_an_answer_goes_on_after_a_rank_was_killed(name: str, split: tuple[int, int], tmp_path: Path) -> None:
    """In float32, where rounding does not decide between tokens."""
    make(name, tmp_path, **CHANGES.get(name, {}))
    spec = describe(tmp_path, read_config(tmp_path))
    plan = make_plan(spec, tensor=split[0], pipeline=split[1])
    model = PreparedModel(tmp_path, spec, plan, cast(Any, None), SamplingParams(), frozenset(), "")
    victim = plan.world_size - 1

    async def body() -> None:
        engine = LocalEngine(EngineOptions(str(tmp_path), self_test=False, threads=1), model, LocalPlanner())
        try:
            await engine.load(None)
            whole = await answers(engine)
            assert [len(answer) for answer in whole] == [TOKENS] * len(PROMPTS)
            before = [rank.pid for rank in engine.ranks]
            assert await answers(engine, victim) == whole
            last = engine.health().last_recovery
            assert last is not None
            assert (last.requests, f"rank {victim} was killed" in last.cause) == (len(PROMPTS), True)
            assert last.kept == tuple(range(victim))
            assert [engine.ranks[rank].pid == before[rank] for rank in range(victim + 1)] == [True] * victim + [False]
        finally:
            await engine.close()

    asyncio.run(body())


@pytest.mark.slow
def test_each_rank_in_turn_dies_and_the_other_keeps_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver of a tensor split, too; with blocks on disk, which are found again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prompts = (tuple(range(3, 140)), PROMPTS[1])

    async def body() -> None:
        options = EngineOptions("demo", tensor=2, dtype="float32", self_test=False, threads=1, prefix_disk=1 << 24)
        engine = await start(options)
        try:
            whole = await answers(engine, None, prompts)
            for victim in (0, 1):
                before = [rank.pid for rank in engine.ranks]
                assert await answers(engine, victim, prompts) == whole
                stays = [rank.pid == pid for rank, pid in zip(engine.ranks, before, strict=True)]
                assert stays == [rank != victim for rank in (0, 1)]
                last = engine.health().last_recovery
                assert last is not None
                assert (last.kept, last.requests) == ((1 - victim,), len(prompts))
        finally:
            await engine.close()

    asyncio.run(body())

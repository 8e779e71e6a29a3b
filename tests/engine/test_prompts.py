"""What a model says of prompts, on every split: log-probabilities of their tokens, and vectors."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tiny_models import make
from transformers import AutoModel, AutoModelForCausalLM

from ferrule.engine import EngineOptions, LocalEngine, SamplingParams
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.source import describe, read_config
from ferrule.errors import RequestError
from ferrule.model import Embedding, PoolingMode
from ferrule.plan import make_plan

PROMPTS = [[5, 17, 99, 42, 8, 77, 23, 64, 12, 90, 31, 7, 55] * 3, [11, 3, 120], [9]]
TOP = 4
PIECE = 16
"""Tokens of a step: the first prompt comes in several."""
CASES = [
    pytest.param("qwen3", (2, 2), "cpu", False, marks=pytest.mark.slow),
    pytest.param("gpt_oss", (2, 1), "emulated", True, marks=pytest.mark.slow),
    pytest.param("qwen3_next", (1, 2), "cpu", False, marks=pytest.mark.soak),
    pytest.param("gemma2", (1, 1), "cpu", False, marks=pytest.mark.soak),
]
"""Step programs, transformers' modules on a device that captures steps of answers, and a recurrent state."""


def expected(directory: Path) -> tuple[list[Any], dict[str, Any]]:
    """By transformers: the log-probabilities after each token of each prompt; and the vectors."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    logprobs, vectors = [], dict[str, Any](mean=[], last=[], cls=[])
    with torch.inference_mode():
        for prompt in PROMPTS:
            out = model(torch.tensor([prompt]), output_hidden_states=True)
            logprobs.append(out.logits[0].log_softmax(-1))
            hidden = out.hidden_states[-1][0]
            for mode, row in (("mean", hidden.mean(0)), ("last", hidden[-1]), ("cls", hidden[0])):
                vectors[mode].append((row / row.norm()).numpy())
    return logprobs, vectors


@pytest.mark.parametrize(("name", "split", "device", "kill"), CASES)
def test_prompts_are_scored_and_embedded(
    name: str, split: tuple[int, int], device: str, kill: bool, tmp_path: Path
) -> None:
    """In float32; also when a rank is killed in the middle of it."""
    make(name, tmp_path)
    logprobs, vectors = expected(tmp_path)
    spec = describe(tmp_path, read_config(tmp_path))
    plan = make_plan(spec, tensor=split[0], pipeline=split[1])
    model = PreparedModel(tmp_path, spec, plan, cast(Any, None), SamplingParams(), frozenset(), "")
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, prompt_logprobs=TOP)

    async def scored(engine: LocalEngine, number: int) -> None:
        tokens = [token async for token in engine.generate(PROMPTS[number], params)]
        assert [token.prompt is None for token in tokens] == [False, True, True]
        found, prompt = tokens[0].prompt or (), PROMPTS[number]
        assert len(found) == len(prompt) - 1
        for place, one in enumerate(found):
            row = logprobs[number][place]
            assert one.logprob == pytest.approx(float(row[prompt[place + 1]]), abs=1e-4)
            assert one.rank == int((row > row[prompt[place + 1]]).sum()) + 1
            best = row.topk(TOP)
            assert [token for token, _ in one.top] == best.indices.tolist()
            assert [value for _, value in one.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert tokens[0].id == int(logprobs[number][-1].argmax())

    async def embedded(engine: LocalEngine, mode: PoolingMode) -> None:
        for found, right in zip(await engine.embed(PROMPTS, mode), vectors[mode], strict=True):
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, right, atol=1e-5)

    async def all_at_once(engine: LocalEngine) -> None:
        work = [scored(engine, number) for number in range(len(PROMPTS))]
        await asyncio.gather(*work, *(embedded(engine, mode) for mode in ("mean", "last", "cls")))

    async def killed(engine: LocalEngine) -> None:
        """A rank is gone while long prompts are computed; what was given by then is not given again."""
        answer = engine.generate([7, 8], SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True))
        await anext(answer)

        asked = asyncio.create_task(all_at_once(engine))
        while not any(request.scores for request in engine._requests.open.values()):
            await asyncio.sleep(0)
        os.kill(engine.ranks[plan.world_size - 1].pid, signal.SIGKILL)
        await asked
        assert len([token async for token in answer]) == 39
        assert engine.health().recoveries == 1

    async def body() -> None:
        options = EngineOptions(
            str(tmp_path), self_test=False, threads=1, dtype="float32", device=device, batch_tokens=PIECE
        )
        engine = LocalEngine(options, model, LocalPlanner())
        try:
            await engine.load(None)
            await all_at_once(engine)
            if kill:
                await killed(engine)
            leaving = asyncio.create_task(engine.embed([PROMPTS[0]] * 5))
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await all_at_once(engine)
            assert engine.idle()
        finally:
            await engine.close()

    asyncio.run(body())


@pytest.mark.slow
def test_a_model_saved_without_its_output_layer_makes_vectors_only(tmp_path: Path) -> None:
    """As Qwen3-Embedding is, whose tensors have other names, too."""
    whole = make("qwen3", tmp_path / "whole", tie_word_embeddings=False)
    directory = tmp_path / "saved"
    AutoModel.from_pretrained(whole).save_pretrained(directory)
    (directory / "modules.json").write_text("[]")
    _, vectors = expected(whole)
    spec = describe(directory, read_config(directory))
    model = PreparedModel(
        directory, spec, make_plan(spec, tensor=2), cast(Any, None), SamplingParams(), frozenset(), "",
        embedding=Embedding("mean", only=True),
    )  # fmt: skip

    async def body() -> None:
        engine = LocalEngine(EngineOptions(str(directory), threads=1, dtype="float32"), model, LocalPlanner())
        try:
            await engine.load(None)
            for found, right in zip(await engine.embed(PROMPTS), vectors["mean"], strict=True):
                np.testing.assert_allclose(found, right, atol=1e-5)
            with pytest.raises(RequestError, match="makes vectors"):
                await anext(engine.generate(PROMPTS[0], SamplingParams()))
        finally:
            await engine.close()

    asyncio.run(body())

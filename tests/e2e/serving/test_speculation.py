"""Speculation of real ranks: an answer goes on after a crash as it was, and what was guessed is told."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from mtp_models import make_mtp

from ferrule.engine import Constraint, EngineOptions, LocalEngine, SamplingParams, Token, start
from ferrule.engine.spec import read_spec
from ferrule.model import demo_path

TOKENS, KILLED_AT = 60, 20
SCHEMA = {"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 12, "maxItems": 12}
TEXT = "for name in names:\n    print(name)\n" * 6


async def asked(engine: LocalEngine, params: SamplingParams, *, kill: bool = False) -> list[Token]:
    """``kill``: a rank dies meanwhile."""
    found: list[Token] = []
    async for token in engine.generate(engine.tokenizer.encode(TEXT), params):
        found.append(token)
        if kill and len(found) == KILLED_AT:
            os.kill(engine.ranks[-1].pid, signal.SIGKILL)
    return found


def ids(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]


@pytest.mark.slow
@pytest.mark.parametrize("speculate", ["ngram:6", "draft=demo:4", "mtp:4"])
def test_an_answer_goes_on_after_a_crash_and_guesses_are_told(speculate: str, tmp_path: Path) -> None:
    model = "demo"
    if speculate.startswith("mtp"):
        vocabulary = read_spec(demo_path()).vocab_size
        model = str(make_mtp("deepseek_v3", tmp_path / "model", echoes=True, vocab_size=vocabulary))
        for file in demo_path().glob("tokenizer*"):
            shutil.copy(file, model)
    greedy = SamplingParams(TOKENS, 0.0, ignore_eos=True)
    schema = SamplingParams(200, 0.0, constraint=Constraint("json_schema", json.dumps(SCHEMA)))

    async def body() -> None:
        options = EngineOptions(model, 2, dtype="float32", threads=1, self_test=False, speculate=speculate)
        engine = await start(options)
        try:
            first = await asked(engine, greedy)
            structured = await asked(engine, schema)
            again = await asked(engine, greedy, kill=True)
            use, recoveries = engine.health().speculation, engine.health().recoveries
        finally:
            await engine.close()
        assert ids(again) == ids(first)
        assert recoveries == 1
        assert len(json.loads(engine.tokenizer.decode(ids(structured)))) == 12
        told = [*first, *structured, *again]
        assert use is not None
        assert use.accepted == sum(token.guessed for token in told) > 0
        assert use.drafted == use.accepted + sum(token.wrong for token in told)

    asyncio.run(body())

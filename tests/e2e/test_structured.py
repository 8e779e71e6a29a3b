"""Structured output of the demo model: real schemas at temperature 1, the same on every split and after a kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from real_schemas import SCHEMAS
from server_process import start_server

from ferrule.engine import Constraint, EngineOptions, LocalEngine, SamplingParams, start
from ferrule.errors import RequestError
from ferrule.serve.tools.families import dialect
from ferrule.serve.tools.grammar.answer import Sought, constraint_of
from ferrule.serve.tools.grammar.lark import Lark
from ferrule.serve.tools.parts import Call, Tools

TOGETHER = 30
SPLITS = [
    pytest.param((2, 1), marks=pytest.mark.slow),
    *(pytest.param(each, marks=pytest.mark.soak) for each in ((1, 2), (2, 2))),
]
LONG = Constraint(
    "json_schema", json.dumps({"type": "array", "items": SCHEMAS["log line"], "minItems": 3, "maxItems": 4})
)
CALLS = {"log": SCHEMAS["log line"]}
SENTIMENT = Constraint("json_schema", json.dumps(SCHEMAS["sentiment"]))
END_OF_THOUGHT, BUDGET = 7, 25
TOGETHER_WITH_TOOLS = constraint_of(
    Lark({"</think>": END_OF_THOUGHT}),
    Sought(CALLS, parallel=False, sure=True, constraint=SENTIMENT, budget=BUDGET),
    dialect("</think>", "hermes"),
    "",
    "<think>",
)
"""A call or JSON, after reasoning that the prompt has opened and its budget ends: by a token that stands for a mark."""
PARAMS = (
    SamplingParams(constraint=LONG, temperature=0.0, max_tokens=150),
    SamplingParams(constraint=LONG, temperature=1.0, seed=5, presence_penalty=0.5, logit_bias={9: 5.0}, max_tokens=150),
    SamplingParams(constraint=Constraint("regex", "([a-z]{3}-){30}"), seed=2, max_tokens=150, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True),
    SamplingParams(constraint=TOGETHER_WITH_TOOLS, temperature=1.0, seed=3, max_tokens=400),
)
"""Beside each other: constrained in several ways, and not at all."""
KILLED_AT = 40


def ask(url: str, rounds: int) -> None:
    """Answers to all schemas, ``rounds`` times: each is JSON of its schema, or was cut at the end of the context."""

    async def one(client: httpx.AsyncClient, limit: asyncio.Semaphore, name: str, seed: int) -> None:
        schema = {"name": "answer", "schema": SCHEMAS[name], "strict": True}
        body = {
            "messages": [{"role": "user", "content": f"Write JSON: {name}"}],
            "response_format": {"type": "json_schema", "json_schema": schema},
            "temperature": 1.0,
            "seed": seed,
        }
        async with limit:
            answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop", (name, seed, choice)
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(json.loads(choice["message"]["content"]))

    async def all_of_them() -> None:
        limit = asyncio.Semaphore(TOGETHER)
        async with httpx.AsyncClient(base_url=url, timeout=600) as client:
            await asyncio.gather(*(one(client, limit, name, seed) for seed in range(rounds) for name in SCHEMAS))

    asyncio.run(all_of_them())


@pytest.mark.parametrize("rounds", [pytest.param(1, marks=pytest.mark.slow), pytest.param(17, marks=pytest.mark.soak)])
def test_answers_are_json_of_their_schemas(rounds: int) -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    server = start_server("--demo", "--no-self-test")
    try:
        ask(server.url, rounds)
    finally:
        server.stop()


Told = list[tuple[int, str | None]]


async def answers(
    engine: LocalEngine, on_token: Callable[[int, int], object] = lambda number, made: None
) -> list[Told]:
    """Of all `PARAMS` at once."""

    async def one(number: int) -> Told:
        told: Told = []
        async for token in engine.generate(engine.tokenizer.encode("def main("), PARAMS[number]):
            told.append((token.id, token.finish))
            on_token(number, len(told))
        return told

    return list(await asyncio.gather(*map(one, range(len(PARAMS)))))


def with_engine(split: tuple[int, int], work: Callable[[LocalEngine], Awaitable[Any]]) -> Any:
    async def body() -> Any:
        tensor, pipeline = split
        options = EngineOptions("demo", tensor=tensor, pipeline=pipeline, dtype="float32", self_test=False, threads=1)
        engine = await start(options)
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(body())


async def answers_with_a_kill(engine: LocalEngine) -> list[Told]:
    victim = engine.ranks[-1].pid

    def at(number: int, made: int) -> None:
        if (number, made) == (0, KILLED_AT):
            os.kill(victim, signal.SIGKILL)

    found = await answers(engine, at)
    last = engine.health().last_recovery
    assert last is not None
    assert last.requests == len(PARAMS)
    return found


@pytest.fixture(scope="module")
def whole() -> list[Told]:
    """On one rank, undisturbed."""

    async def refused_and_answered(engine: LocalEngine) -> list[Told]:
        with pytest.raises(RequestError, match="unclosed group"):
            await anext(engine.generate([5], SamplingParams(constraint=Constraint("regex", "a(b"))))
        told = await answers(engine)
        tokens = [token for token, _ in told[4][:-1]]
        assert tokens.index(END_OF_THOUGHT) == BUDGET
        reader = dialect("</think>", "hermes").reader("", Tools(CALLS))
        parts = [*reader.push(engine.tokenizer.decode(tokens[BUDGET + 1 :])), *reader.finish(ended=True)]
        (said,) = parts
        schema = CALLS[said.name] if isinstance(said, Call) else SCHEMAS["sentiment"]
        text = said.arguments if isinstance(said, Call) else said.text
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        return told

    found: list[Told] = with_engine((1, 1), refused_and_answered)
    assert [answer[-1][1] for answer in found] == ["length", "length", "stop", "length", "stop"]
    assert len(found[2]) < 150
    return found


@pytest.mark.parametrize("split", SPLITS)
def test_the_answer_is_the_same_on_a_split_of_which_a_rank_was_killed(
    whole: list[Told], split: tuple[int, int]
) -> None:
    """In float32, where rounding does not decide between tokens."""
    assert with_engine(split, answers_with_a_kill) == whole


@pytest.mark.slow
def test_generate_prints_json_of_a_schema(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMAS["sentiment"]))
    command = [sys.executable, "-m", "ferrule.cli.main", "generate", "demo", "Judge!", "--schema", str(file)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    jsonschema.Draft202012Validator(SCHEMAS["sentiment"]).validate(json.loads(told))

"""Engines over the fake llama-server, for tests of what is the same for all guests."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

import fake_llama
import pytest

from ferrule.engine.guests.engine import GuestEngine
from ferrule.engine.guests.guest import Launch, Room
from ferrule.engine.guests.llama_cpp.guest import LlamaCpp
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.options import EngineOptions
from ferrule.engine.spec import read_spec
from ferrule.engine.tokenizer.model import ModelTokenizer
from ferrule.engine.types import SamplingParams, Token
from ferrule.model import ModelSpec, demo_path
from ferrule.plan import make_plan

GREEDY = SamplingParams(max_tokens=40, temperature=0.0)
SECONDS = 30.0


@cache
def demo() -> tuple[ModelSpec, ModelTokenizer]:
    return read_spec(demo_path()), ModelTokenizer(demo_path())


def on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch, **order: Any) -> Path:
    """Put the fake ``llama-server`` on the PATH, which does as ``order`` says; the file of its requests."""
    program = folder / "llama-server"
    program.write_text(f"#!{sys.executable} -IS\n{Path(fake_llama.__file__).read_text()}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    log = folder / "requests.jsonl"
    monkeypatch.setenv("FAKE_LLAMA", json.dumps(order | {"log": str(log)}))
    return log


def requests(log: Path) -> list[Any]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def engine_of(guest: LlamaCpp, sequences: int = 4, **options: Any) -> GuestEngine:
    program = guest.find()
    assert program is not None
    spec, tokenizer = demo()
    plan = make_plan(spec)
    model = PreparedModel(demo_path(), spec, plan, tokenizer, SamplingParams(), frozenset({fake_llama.END}), "")
    room = Room(1024, sequences)
    return GuestEngine(
        guest, Launch(program, Path("model.gguf"), "tiny", spec, plan, EngineOptions("tiny", **options), room, 1), model
    )


def with_engine(body: Callable[[GuestEngine], Awaitable[None]], guest: LlamaCpp | None = None, **options: Any) -> None:
    """Run ``body`` with an engine that is loaded, within a deadline, and close it."""

    async def main() -> None:
        async with asyncio.timeout(SECONDS):
            engine = engine_of(guest or LlamaCpp(), **options)
            try:
                await engine.load()
                await body(engine)
            finally:
                await engine.close()

    asyncio.run(main())


async def ask(engine: GuestEngine, prompt: list[int], params: SamplingParams = GREEDY) -> list[Token]:
    return [token async for token in engine.generate(prompt, params)]


def ids(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]

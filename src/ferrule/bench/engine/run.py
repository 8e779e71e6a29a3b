"""The order of `ferrule bench engine`: those of one format take turns, then each server is asked by itself."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from ferrule.bench.engine.as_gguf import TYPES, write_gguf
from ferrule.bench.engine.contestants import PROMPT, Contestant, Ferrule, LlamaBench, Transformers
from ferrule.bench.engine.rows import EngineRow, Turn, Who, decode_turn, prefill_turn, row
from ferrule.bench.engine.serving import Server, ferrule_server, llama_server, vllm_server
from ferrule.bench.random_model import given_or_random
from ferrule.engine import EngineOptions
from ferrule.errors import ConfigError, EngineError
from ferrule.model.headers import read_json

FORMATS = tuple(TYPES)
AS_STORED = "bfloat16"
STREAMS, LONG = 8, 8192
"""Streams beside which long prompts come, and how many tokens these have."""


@dataclass(frozen=True)
class Peers:
    """Programs of other engines; None: not measured."""

    llama_bench: Path | None = None
    llama_server: Path | None = None
    vllm: Path | None = None

    @classmethod
    def found(cls, llama_cpp: Path | None, vllm: Path | None) -> Peers:
        """Those in the folder ``llama_cpp`` or on the search path, and ``vllm``. llama.cpp needs ``gguf`` beside it.
        Raises `ConfigError` where what was named is not there."""
        places = None if llama_cpp is None else str(llama_cpp)
        bench, server = (shutil.which(name, path=places) for name in ("llama-bench", "llama-server"))
        if llama_cpp is not None and bench is None and server is None:
            raise ConfigError(f"{llama_cpp} holds neither llama-bench nor llama-server")
        if vllm is not None and not vllm.exists():
            raise ConfigError(f"there is no {vllm}")
        own = shutil.which("vllm")
        vllm = vllm or (Path(own) if own else None)
        if find_spec("gguf") is None:
            if llama_cpp is not None:
                raise ConfigError("llama.cpp is given its weights by the Python package gguf: pip install gguf")
            return cls(vllm=vllm)
        return cls(Path(bench) if bench else None, Path(server) if server else None, vllm)


@dataclass
class EngineBench:
    """``serve``: the command `ferrule serve`. ``levels``: streams at once through HTTP; ``tokens``: of a decoding turn;
    ``served_tokens``: of a served answer; ``prefill``: of the prompt that is timed; ``long``: of those beside streams.
    ``say`` gets a line about what is happening, ``note`` one about what is to be known of the results."""

    directory: Path
    scratch: Path
    serve: Sequence[str]
    ranks: int = 2
    threads: int = 1
    formats: Sequence[str] = FORMATS
    levels: Sequence[int] = (1, 4, 16, 64)
    rounds: int = 5
    tokens: int = 32
    served_tokens: int = 64
    prefill: int = 512
    long: int = LONG
    peers: Peers = field(default_factory=Peers)
    say: Callable[[str], None] = lambda line: None
    note: Callable[[str], None] = lambda line: None

    async def run(self) -> list[EngineRow]:
        rows: list[EngineRow] = []
        for form in self.formats:
            rows += await self._turns(form)
        for form in self.formats:
            for who, server in self._servers(form):
                try:
                    rows += await self._served(who, server)
                except (EngineError, httpx.HTTPError) as error:  # what the others did is not lost
                    self.note(f"{who.impl}, {form}, is left out: {error}")
        return rows

    async def _turns(self, form: str) -> list[EngineRow]:
        async with AsyncExitStack() as stack:
            playing: dict[Who, Contestant] = {}
            for who, contestant in self._contestants(form):
                self.say(f"loading {who.impl}, {form}, {_ranks(who.ranks)}")
                playing[who] = await stack.enter_async_context(contestant)
            decoded: dict[Who, list[Turn]] = {who: [] for who in playing}
            filled: dict[Who, list[Turn]] = {who: [] for who in playing}
            for each in playing.values():
                await each.timed(PROMPT, 4)
            for number in range(self.rounds):
                self.say(f"{form}: round {number + 1} of {self.rounds}")
                for who, each in playing.items():
                    decoded[who].append(decode_turn((await each.timed(PROMPT, self.tokens))[1:]))
                    filled[who].append(prefill_turn(self.prefill, (await each.timed(self.prefill, 1))[0]))
        return [
            *(row(who, "decode", 1, turns) for who, turns in decoded.items()),
            *(row(who, "prefill", 1, turns) for who, turns in filled.items()),
        ]

    def _contestants(self, form: str) -> list[tuple[Who, Any]]:
        weights = None if form == AS_STORED else form
        found: list[tuple[Who, Any]] = []
        for ranks in (1, self.ranks):
            options = EngineOptions(
                str(self.directory), tensor=ranks, threads=self.threads, self_test=False, weights=weights,
                prefix_cache=False,
            )  # fmt: skip
            found.append((Who("ferrule", ranks, self.threads, form), Ferrule(options)))
        if form == AS_STORED:
            found.append((Who("transformers", 1, self.threads, form), Transformers(self.directory, 1, self.threads)))
        if self.peers.llama_bench is not None:
            for threads in (self.threads, self.threads * self.ranks):
                bench = LlamaBench(self.peers.llama_bench, self._gguf(form), threads)
                found.append((Who("llama.cpp", 1, threads, form), bench))
        return found

    def _servers(self, form: str) -> list[tuple[Who, Server]]:
        """On all cores that are meant: as many ranks, or as many threads."""
        most, weights = max(self.levels, default=1), None if form == AS_STORED else form
        whole = Who("ferrule", self.ranks, self.threads, form)
        found = [(whole, ferrule_server(self.serve, self.directory, self.ranks, self.threads, weights))]
        if self.peers.llama_server is not None:
            threads = self.threads * self.ranks
            server = llama_server(self.peers.llama_server, self._gguf(form), threads, most)
            found.append((Who("llama.cpp", 1, threads, form), server))
        if self.peers.vllm is not None and form == AS_STORED:
            server = vllm_server(self.peers.vllm, self.directory, self.ranks, self.threads, most)
            found.append((Who("vllm", self.ranks, self.threads, form), server))
        return found

    async def _served(self, who: Who, server: Server) -> list[EngineRow]:
        if not self.levels:
            return []
        config = read_json(self.directory / "config.json")
        vocabulary = int(config["vocab_size"])
        long = min(self.long, int(config.get("max_position_embeddings") or 2 * self.long) // 2)
        self.say(f"starting {who.impl} as a server, {who.format}, {_ranks(who.ranks)}")
        rows = []
        async with server:
            await server.turn(1, 16, 4, vocabulary, 0)
            turns = [await server.turn(1, self.prefill, 1, vocabulary, 100 + each) for each in range(3)]
            rows.append(row(who, "prefill", 1, [prefill_turn(self.prefill, turn.first[0]) for turn in turns]))
            if who.impl == "ferrule":
                self.say(f"{who.impl}, {who.format}: prompts that begin alike")
                pairs = [await server.alike(vocabulary, 200 + each) for each in range(3)]
                rows.append(row(who, "whole", 1, [whole for whole, _ in pairs]))
                rows.append(row(who, "prefix", 1, [begun for _, begun in pairs]))
                self.say(f"{who.impl}, {who.format}: long prompts beside {STREAMS} streams")
                alone, beside = await server.beside(STREAMS, long, self.served_tokens, vocabulary, 300)
                rows.append(row(who, "alone", STREAMS, [alone]))
                rows.append(row(who, "beside", STREAMS, [beside]))
            for level in self.levels:
                self.say(f"{who.impl}, {who.format}: {level} streams")
                rounds = [
                    await server.turn(level, PROMPT, self.served_tokens, vocabulary, 1000 * level + each)
                    for each in range(3 if level < 16 else 2)
                ]
                rows.append(row(who, "serve", level, rounds))
        return rows

    def _gguf(self, form: str) -> Path:
        file = self.scratch / f"{form}.gguf"
        if not file.exists():
            self.say(f"writing the model for llama.cpp, {form}")
            write_gguf(self.directory, file, form)
        return file


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"


def bench_engine(
    *,
    serve: Sequence[str],
    quick: bool = False,
    model: Path | None = None,
    ranks: int = 2,
    threads: int = 1,
    formats: Sequence[str] = FORMATS,
    levels: Sequence[int] = (1, 4, 16, 64),
    rounds: int = 5,
    tokens: int = 32,
    peers: Peers | None = None,
    say: Callable[[str], None] = lambda line: None,
    note: Callable[[str], None] = lambda line: None,
) -> list[EngineRow]:
    """Measure ``model`` (plain weights), or a random bfloat16 Llama of half a billion parameters; ``quick``: a tiny one
    and few turns. Raises `ConfigError` for a format that is not known."""
    unknown = [each for each in formats if each not in FORMATS]
    if unknown:
        raise ConfigError(f"--formats: there is no {unknown[0]!r}; there are {', '.join(FORMATS)}")
    with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as scratch:
        directory = given_or_random(model, Path(scratch), say, quick=quick)
        bench = EngineBench(
            directory, Path(scratch), serve, ranks, threads, formats,
            [each for each in levels if each <= 4] if quick else levels,
            2 if quick else rounds, tokens, long=512 if quick else LONG, peers=peers or Peers(), say=say, note=note,
        )  # fmt: skip
        return asyncio.run(bench.run())

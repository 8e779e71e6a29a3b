"""Time per token of answers that follow a JSON schema, beside that of free ones, on the same ranks."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

from ferrule.engine import Constraint, EngineOptions, SamplingParams, Token, start

PROMPT = 32
_RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "kind": {"enum": ["host", "link", "rank", "group"]},
        "address": {"type": "string", "pattern": "^[0-9]{1,3}(\\.[0-9]{1,3}){3}$"},
        "load": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    },
    "required": ["name", "kind", "address", "load"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class StructuredBench:
    """Milliseconds per token: medians over the rounds, which alternate. ``most``: of the longest gap. ``constrained``:
    of records, many of whose tokens are forced; ``strings``: of strings, where each is sampled."""

    model: str
    rounds: int
    tokens: int
    free_ms: float
    constrained_ms: float
    strings_ms: float
    free_most_ms: float
    constrained_most_ms: float
    strings_most_ms: float

    @property
    def slower(self) -> float:
        """Part by which a constrained token takes longer."""
        return self.constrained_ms / self.free_ms - 1

    @property
    def strings_slower(self) -> float:
        return self.strings_ms / self.free_ms - 1


async def bench_structured(options: EngineOptions, *, rounds: int, tokens: int) -> StructuredBench:
    """One stream at temperature 1. A round is an answer of each kind, of ``tokens`` tokens each. Raises what
    `ferrule.engine.start` raises."""
    # No answer is complete before its last token.
    schemas = {
        "constrained": {"type": "array", "items": _RECORD, "minItems": tokens},
        "strings": {"type": "array", "items": {"type": "string"}, "minItems": tokens},
    }
    kinds: dict[str, Constraint | None] = {"free": None}
    kinds |= {name: Constraint("json_schema", json.dumps(schema)) for name, schema in schemas.items()}
    engine = await start(options)
    try:
        gaps: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
        for turn in range(rounds + 1):
            for kind, constraint in kinds.items():
                params = SamplingParams(tokens, seed=turn, ignore_eos=True, constraint=constraint)
                prompt = range(3, 3 + PROMPT)
                async with aclosing(engine.generate(prompt, params)) as stream:
                    found = await _gaps(stream)
                if turn:  # the first one compiles, and fills caches
                    gaps[kind].append(found)
        times = {f"{kind}_ms": statistics.median(map(statistics.mean, some)) for kind, some in gaps.items()}
        most = {f"{kind}_most_ms": statistics.median(map(max, some)) for kind, some in gaps.items()}
        return StructuredBench(engine.name, rounds, tokens, **times, **most)
    finally:
        await engine.close()


async def _gaps(stream: AsyncIterator[Token]) -> list[float]:
    """Milliseconds between the tokens."""
    ends = [time.perf_counter() async for _ in stream]
    return [(after - before) * 1e3 for before, after in pairwise(ends)]

"""Quality that quantised keys and values cost: how likely a model finds a text's tokens with every kind of cache."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pydoc_data import topics

from ferrule.engine import EngineOptions, LocalEngine, SamplingParams, start
from ferrule.engine.types import PromptToken
from ferrule.errors import ConfigError
from ferrule.model import CACHE_BITS
from ferrule.plan import BUILT_IN_ENGINE

PLAIN = "auto"


@dataclass(frozen=True)
class CacheRow:
    """``kv_cache``: its kind. ``bytes_per_token``: of one sequence, over all ranks, as the planner counts. ``apart``:
    mean difference of a token's log-probability from that with plain numbers, in nats. ``same``: part of the tokens
    after which the likeliest one is the same."""

    kv_cache: str
    bytes_per_token: float
    perplexity: float
    apart: float
    same: float


def reference_text() -> str:
    """The language reference of this Python: prose and code, which is on every machine."""
    return "\n".join(text for _, text in sorted(topics.topics.items()))


async def bench_kv_cache(
    options: EngineOptions,
    text: str,
    tokens: int,
    *,
    say: Callable[[str], None] = lambda line: None,
    note: Callable[[str], None] = lambda line: None,
) -> list[CacheRow]:
    """Of the first ``tokens`` tokens of ``text``, in pieces as long as the context, all of which the model reads with
    every kind of cache. ``say`` gets a line about what is happening, ``note`` one about kinds that cannot be. Raises
    what `ferrule.engine.start` raises, and `ConfigError` where ``text`` is too short to tell anything."""
    rows: list[CacheRow] = []
    plain: list[PromptToken] = []
    for kv_cache in (PLAIN, *(kind for kind in CACHE_BITS if kind != PLAIN)):
        say(f"reading with {kv_cache} keys and values")
        kept = replace(options, kv_cache=kv_cache, prefix_cache=False, self_test=False)
        try:
            engine = await start(kept)
        except ConfigError as error:
            if kv_cache == PLAIN:
                raise
            note(str(error))
            continue
        try:
            found = await _read(engine, text, tokens)
        finally:
            await engine.close()
        plain = plain or found
        size = engine.spec.cache_bytes(1, BUILT_IN_ENGINE.cache_of(engine.spec))
        rows.append(_row(kv_cache, size, plain, found))
    return rows


async def _read(engine: LocalEngine, text: str, tokens: int) -> list[PromptToken]:
    ids, piece = engine.tokenizer.encode(text)[:tokens], engine.max_context - 1
    if len(ids) < 2:
        raise ConfigError("the text has no second token, whose likelihood would tell something")
    found: list[PromptToken] = []
    for first in range(0, len(ids), piece):
        params = SamplingParams(1, temperature=0.0, prompt_logprobs=1)
        async with aclosing(engine.generate(ids[first : first + piece], params)) as stream:
            async for token in stream:
                found += token.prompt or ()
    return found


def _row(kv_cache: str, size: float, plain: Sequence[PromptToken], found: Sequence[PromptToken]) -> CacheRow:
    pairs = list(zip(plain, found, strict=True))
    return CacheRow(
        kv_cache,
        size,
        math.exp(-statistics.fmean(each.logprob for each in found)),
        statistics.fmean(abs(one.logprob - other.logprob) for one, other in pairs),
        statistics.fmean(one.top[0][0] == other.top[0][0] for one, other in pairs),
    )

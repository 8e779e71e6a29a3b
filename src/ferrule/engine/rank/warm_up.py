"""The trial run of all ranks after loading: it times a token, and finds out how many the caches can hold."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.runner import Runner
from ferrule.engine.shards.messages import TELL_TIMEOUT, sharing, tell_all
from ferrule.errors import EngineError
from ferrule.plan import BUILT_IN_ENGINE, PAGE_TOKENS
from ferrule.plan.one_machine import LEAST_CONTEXT
from ferrule.process.memory import private_bytes

WARM_UP = 4
"""Tokens of the trial run; enough to touch both the prompt and the one-token kernels."""
ACCELERATOR_ROWS = 256
"""Tokens of a step in which arithmetic takes longer than reading the weights."""


@dataclass(frozen=True)
class Trial:
    """``cache_tokens``: how many tokens the caches of every rank hold, of ``sequences`` at most. ``step_seconds``: what
    one token of one sequence took. ``ridge``: see `Pace`. ``unshared``: see `Runner.unshared`, of any rank;
    ``copies``: whether any has copies of blocks."""

    cache_tokens: int
    sequences: int
    step_seconds: float
    ridge: int
    unshared: str | None = None
    copies: bool = False


@dataclass(frozen=True)
class DraftTrial:
    """Trial of a draft model. ``seconds``: of a token. ``token_bytes``: of the cache, for each; ``captured_bytes``:
    that captured steps may take."""

    seconds: float
    token_bytes: int
    captured_bytes: int


def try_draft(runner: Runner) -> DraftTrial:
    """Run a sequence through a draft model. Raises `EngineError` where it cannot take back what a wrong guess left."""
    runner.run(Batch((Span(0, 0, WARM_UP, True),), (0,) * WARM_UP))
    seconds = min(_seconds(runner, Batch((Span(0, WARM_UP + i, 1, True),), (0,))) for i in range(2))
    size, reason = runner.cache_bytes_per_token(0), runner.unshared(0)
    if reason is not None:
        raise EngineError(
            f"--speculate: the draft model {Path(runner.options.directory).name} has {reason}, which cannot take back "
            "what a wrong guess left; take another one, or ngram"
        )
    runner.run(Batch(released=(0,)))
    free = runner.device.memory_free()
    captured = max(0, free - runner.cache_memory()) if runner.captured_room() else 0
    return DraftTrial(seconds, size, captured)


def warm_up(runner: Runner, draft: DraftTrial | None = None) -> Trial:
    """Run a trial sequence; all ranks call it. ``draft``: of the model that this rank has beside, for as many tokens.

    Raises `ModelError` where the model cannot be run in batches, `EngineError` where no memory is left for caches."""
    runner.run(Batch((Span(0, 0, WARM_UP, True),), (0,) * WARM_UP))
    seconds = min(_seconds(runner, Batch((Span(0, WARM_UP + i, 1, True),), (0,))) for i in range(2))
    per_token, state = max(1, runner.cache_bytes_per_token(0)), runner.state_bytes(0)
    unshared = runner.unshared(0)
    runner.run(Batch(released=(0,)))
    for number in range(1, len(runner.options.adapters) + 1):  # what cannot run is refused before any request comes
        runner.run(Batch((Span(0, 0, WARM_UP, True),), (0,) * WARM_UP, adapters=(number,)))
        runner.run(Batch(released=(0,)))
    world = runner.world
    free = runner.cache_memory() / sharing(world, runner.device.memory_name)
    if draft is not None:
        per_token, free = per_token + draft.token_bytes, free - draft.captured_bytes
    copies, left = runner.options.copies, runner.options.copies_left
    free = (free - left * private_bytes()) / copies  # those to come will hold what this one holds
    sequences = BUILT_IN_ENGINE.sequences(free, state, runner.options.max_sequences)
    tokens = BUILT_IN_ENGINE.cache_tokens(free, per_token, sequences, state)
    ranks = runner.options.plan.context
    uneven = sequences * PAGE_TOKENS * (ranks - 1)  # the first rank may have a page more of each
    tokens = max(tokens - uneven, tokens // ranks)
    room = np.array([tokens, sequences, runner.captured_room()], dtype=np.int64)
    world.all_reduce(room, op="min")
    if room[0] < LEAST_CONTEXT:
        raise EngineError(
            f"after loading, memory is left for {room[0]} tokens of cache ({per_token:,} bytes each on this rank); "
            "free some memory or use more ranks"
        )
    tokens, sequences, captured = (int(each) for each in room)
    runner.reserve(tokens, sequences, captured)
    of_all = tell_all(world, (unshared or "", runner.copies_blocks), TELL_TIMEOUT)
    reason = next((each for each, _ in of_all if each), None)
    copies = any(each for _, each in of_all)
    return Trial(tokens, sequences, seconds, _ridge(runner, seconds, tokens), reason, copies)


def _ridge(runner: Runner, token_seconds: float, cache_tokens: int) -> int:
    """`Pace.ridge`, from the time of a step of many tokens, which is that of arithmetic. 0 where a rank computes on
    processors, whose ridge is low, and found out soon enough."""
    most = 0 if runner.device.torch_device.type == "cpu" else ACCELERATOR_ROWS
    rows = np.array([min(most, runner.options.context, cache_tokens)], dtype=np.int64)
    runner.world.all_reduce(rows, op="min")
    count = int(rows[0])
    if not count:
        return 0
    step, released = Batch((Span(0, 0, count, True),), (0,) * count), Batch(released=(0,))
    times = []
    for _ in range(2):
        times.append(_seconds(runner, step))
        runner.run(released)
    return min(count, round(count * token_seconds / min(times)))


def _seconds(runner: Runner, batch: Batch) -> float:
    runner.device.synchronize()
    begin = time.perf_counter()
    runner.run(batch)
    runner.device.synchronize()
    return time.perf_counter() - begin

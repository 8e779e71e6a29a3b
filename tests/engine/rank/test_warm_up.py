"""Number of tokens that the caches hold: of the memory that the ranks of one machine share, as the device tells it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from fake_ranks import rank_options
from in_threads import on_all, thread_groups

from ferrule.engine.devices import cpu, open_device
from ferrule.engine.rank import warm_up as warm_up_module
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.runner import Runner
from ferrule.engine.rank.warm_up import warm_up
from ferrule.engine.shards.messages import sharing
from ferrule.errors import ConfigError, EngineError


class SmallRunner:
    """A runner with nothing in it but memory for ``tokens`` of 10 bytes. A step takes 2 ms or, if that is longer,
    ``row_seconds`` for each of its tokens."""

    def __init__(self, world: Any, tokens: int, state: int = 0, row_seconds: float = 0.0) -> None:
        self.world, self.tokens, self.state, self.options = world, tokens, state, rank_options(2)
        self.device, self.row_seconds, self.longest = open_device("cpu", 1), row_seconds, 0

    def run(self, batch: Batch) -> None:
        self.longest = max(self.longest, len(batch.tokens))
        if self.row_seconds and batch.tokens:
            time.sleep(max(2e-3, self.row_seconds * len(batch.tokens)))

    def cache_bytes_per_token(self, sequence: int) -> int:
        return 10

    def state_bytes(self, sequence: int) -> int:
        return self.state

    def unshared(self, sequence: int) -> str | None:
        return "recurrent layers" if self.state else None

    copies_blocks = False

    def cache_memory(self) -> int:
        return 10 * self.tokens

    def captured_room(self) -> int:
        return self.tokens

    def reserve(self, tokens: int, sequences: int, captured_room: int) -> None:
        self.reserved = (tokens, sequences, captured_room)


def on_ranks(count: int, body: Any) -> list[Any]:
    worlds = thread_groups(count)
    try:
        return on_all(worlds, body)
    finally:
        for world in worlds:
            world.close()


def room(tokens: list[int]) -> list[int]:
    return on_ranks(
        len(tokens), lambda world: warm_up(cast(Runner, SmallRunner(world, tokens[world.rank]))).cache_tokens
    )


def test_ranks_of_other_machines_take_none_of_this_ones_memory() -> None:
    assert on_ranks(3, lambda world: sharing(world, "aab"[world.rank])) == [2, 2, 1]


def test_the_rank_with_least_memory_decides_for_all() -> None:
    # Half of it for caches, shared by two ranks, and half of that again in case the caches grow.
    assert room([80_000, 8_000]) == [1000, 1000]


def test_all_ranks_make_the_same_caches_and_capture_the_same_steps() -> None:
    def reserved(world: Any) -> tuple[int, ...]:
        runner = SmallRunner(world, [80_000, 8_000][world.rank])
        warm_up(cast(Runner, runner))
        return runner.reserved

    assert on_ranks(2, reserved) == [(1000, 1, 8_000)] * 2


def test_copies_of_a_model_in_one_memory_share_it_with_those_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up_module, "private_bytes", lambda: 20_000)

    def trial(world: Any, left: int) -> int:
        # Of 80,000 bytes for each of two ranks, two copies more will take 20,000 each; a third of the rest is ours.
        runner = SmallRunner(world, 16_000)
        runner.options = replace(runner.options, copies=3, copies_left=left)
        return warm_up(cast(Runner, runner)).cache_tokens

    assert on_ranks(2, lambda world: trial(world, 2)) == [333, 333]
    assert on_ranks(2, lambda world: trial(world, 0)) == [666, 666], "all are there"


def test_states_take_half_of_what_is_for_caches_at_most() -> None:
    def trial(world: Any) -> tuple[int, int]:
        # Of 800,000 bytes half is for caches, 200,000 for each of two ranks; a state takes 20,000.
        runner = SmallRunner(world, 80_000, 20_000)
        runner.options = replace(runner.options, max_sequences=64)
        found = warm_up(cast(Runner, runner))
        return found.sequences, found.cache_tokens

    assert on_ranks(2, trial) == [(5, 5000)] * 2


def test_the_ridge_is_where_arithmetic_takes_as_long_as_reading() -> None:
    def ridge(world: Any) -> int:
        runner = SmallRunner(world, 80_000, row_seconds=2e-4)
        runner.device.torch_device = torch.device("meta")
        return warm_up(cast(Runner, runner)).ridge

    assert all(8 <= found <= 13 for found in on_ranks(2, ridge)), "10 rows of 0.2 ms take as long as one of 2 ms"


def test_of_processors_the_ridge_is_not_measured() -> None:
    runners: list[SmallRunner] = []

    def ridge(world: Any) -> int:
        runners.append(SmallRunner(world, 80_000))
        return warm_up(cast(Runner, runners[-1])).ridge

    assert on_ranks(2, ridge) == [0, 0]
    assert {runner.longest for runner in runners} == {4}


def test_too_little_memory_is_an_error_that_says_how_much() -> None:
    with pytest.raises(EngineError, match="memory is left for 12 tokens of cache"):
        room([100, 100])


def test_the_processors_have_no_more_memory_than_their_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of `memory_free` (tests/process/test_process_memory.py) counts, not what the machine has."""
    monkeypatch.setattr(cpu, "memory_free", lambda: (600_000, 1_000_000))
    assert open_device("cpu", 1).memory_free() == 600_000


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ConfigError, match="--device 'npu' is not one of auto, cpu"):
        open_device("npu", 1)

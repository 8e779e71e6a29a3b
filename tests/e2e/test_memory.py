"""A rank holds its shard and little more, also while loading."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ferrule.bench.random_model import RandomModel, save_random_llama
from ferrule.engine import EngineOptions, RankInfo, start

pytestmark = pytest.mark.slow

MIB = 1 << 20
MARGIN = 48 * MIB
"""Threads' stacks, allocator slack, oneDNN's kernels and a trial run; does not grow with the model."""

SHAPE = RandomModel("random", hidden=1024, intermediate=4096, layers=8, heads=16, key_value_heads=8, vocabulary=16000)
PARAMETERS = 2 * 16000 * 1024 + 8 * (3 * 1024 * 4096 + (2 * 1024 + 2 * 512) * 1024)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_llama(tmp_path_factory.mktemp("model"), SHAPE)


async def loaded(directory: Path, tensor: int, pipeline: int) -> tuple[RankInfo, ...]:
    engine = await start(EngineOptions(str(directory), tensor=tensor, pipeline=pipeline, threads=1, self_test=False))
    await engine.close()
    return engine.ranks


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2)])
def test_peak_memory_of_a_rank_is_its_shard_and_a_small_margin(tensor: int, pipeline: int, model: Path) -> None:
    ranks = asyncio.run(loaded(model, tensor, pipeline))
    whole = sum(rank.weight_bytes for rank in ranks)
    assert 2 * PARAMETERS <= whole < 2.01 * PARAMETERS  # the norms are on every rank
    for rank in ranks:
        assert rank.weight_bytes < 1.1 * whole / len(ranks)
        assert rank.peak_bytes - rank.base_bytes < rank.weight_bytes + MARGIN

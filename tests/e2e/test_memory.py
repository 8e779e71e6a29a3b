"""A rank holds its shard and little more, also while loading."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from random_packed import FORMATS, PLAIN, write_random, write_random_gguf

from ferrule.engine import EngineOptions, Progress, RankInfo, start
from ferrule.engine.rank.worker import RANK_NAME
from ferrule.engine.source import describe, read_config
from ferrule.plan.cost import weight_bytes
from ferrule.plan.plan import make_plan
from ferrule.process.lifeline import STANDBY_NAME

MARGIN = 64_000_000
"""Threads' stacks, allocator slack, and what is unpacked at a time; does not grow with the model."""
PERIOD = 0.003
"""Seconds between two looks at the ranks."""
NAMES = (RANK_NAME, STANDBY_NAME)

SIZES: dict[str, Any] = {
    "vocab_size": 64000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
"""Matrices of more numbers than are unpacked at a time, an embedding of a quarter of a gigabyte."""


def forms(names: Iterable[str], *slow: str) -> list[Any]:
    """All of ``names``; those that are not ``slow`` are tested by hand: each takes a quarter of a minute."""
    return [pytest.param(name, marks=pytest.mark.slow if name in slow else pytest.mark.soak) for name in names]


class Watch:
    """The highest anonymous memory of each rank process, until all of ``ranks`` have loaded.

    A child that has not begun its program yet is seen with the memory of this process, so only those count that have
    the name of a rank, or of one that waits for its options: they take it before they load."""

    def __init__(self, ranks: int) -> None:
        self.peaks: defaultdict[int, int] = defaultdict(int)
        self._loading = set(range(ranks))
        self._loaded = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def on_progress(self, progress: Progress) -> None:
        if progress.phase == "warm up":
            self._loading.discard(progress.rank)
        if not self._loading:
            self.end()

    def end(self) -> None:
        self._loaded.set()
        self._thread.join()

    def _look(self) -> None:
        this = psutil.Process()
        while not self._loaded.wait(PERIOD):
            for child in this.children(recursive=True):
                try:
                    lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
                except OSError:  # it has ended
                    continue
                told = dict(line.split(":\t", 1) for line in lines)
                if told["Name"] in NAMES and "RssAnon" in told:  # which one that has ended has no more
                    held = int(told["RssAnon"].split()[0]) * 1024
                    self.peaks[child.pid] = max(self.peaks[child.pid], held)


def check(directory: Path, tensor: int = 1, pipeline: int = 1, weights: str | None = None) -> None:
    spec = describe(directory, read_config(directory), weights)
    plan = make_plan(spec, tensor=tensor, pipeline=pipeline)
    options = EngineOptions(
        str(directory), tensor=tensor, pipeline=pipeline, threads=1, self_test=False, weights=weights
    )
    watch = Watch(plan.world_size)

    async def loaded() -> tuple[RankInfo, ...]:
        engine = await start(options, watch.on_progress)
        await engine.close()
        return engine.ranks

    try:
        ranks = asyncio.run(loaded())
    finally:
        watch.end()
    assert tuple(rank.weight_bytes for rank in ranks) == weight_bytes(spec.in_engine, plan)
    for rank in ranks:
        assert rank.pid in watch.peaks, f"rank {rank.rank} was never seen by its name"
        more = watch.peaks[rank.pid] - rank.base_bytes - rank.weight_bytes
        assert more < MARGIN, f"rank {rank.rank} of {rank.weight_bytes:,} bytes of weights took {more:,} more"


@pytest.mark.parametrize("form", forms([*FORMATS, *PLAIN], "nf4"))
def test_peak_memory_of_a_rank_is_its_shard_and_a_small_margin(form: str, tmp_path: Path) -> None:
    check(write_random(tmp_path / form, form, **SIZES), 2)


@pytest.mark.soak
def test_the_same_of_experts(tmp_path: Path) -> None:
    sizes = {**SIZES, "intermediate_size": 2048, "num_local_experts": 8, "head_dim": 128}
    check(write_random(tmp_path / "m", "mxfp4", "gpt_oss", **sizes), 2)


@pytest.mark.parametrize("kind", forms(["Q4_0", "Q4_K", "Q6_K", "F16"], "Q4_K"))
def test_the_same_of_gguf_files(kind: str, tmp_path: Path) -> None:
    check(write_random_gguf(tmp_path / "m.gguf", kind, **SIZES), 2)


@pytest.mark.parametrize(
    ("tensor", "pipeline"),
    [pytest.param(1, 1, marks=pytest.mark.soak), pytest.param(1, 2, marks=pytest.mark.slow)],
)
def test_the_same_of_other_splits(tensor: int, pipeline: int, tmp_path: Path) -> None:
    check(write_random(tmp_path / "m", "int4", **SIZES), tensor, pipeline)


@pytest.mark.parametrize("weights", forms(["int8", "int4"], "int4"))
def test_the_same_of_weights_that_are_quantised(weights: str, tmp_path: Path) -> None:
    check(write_random(tmp_path / "m", "bfloat16", **SIZES), 2, weights=weights)

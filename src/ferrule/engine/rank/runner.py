"""Run batches on one rank: its stage of the model, with activations from the stage before and to the one after."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor

from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.model import ShardedModel, build
from ferrule.engine.types import Progress
from ferrule.errors import EngineError
from ferrule.fabric import Group
from ferrule.plan import BUILT_IN_ENGINE

LEAST_ROOM = 64
"""Tokens of cache below which serving makes no sense."""

WARM_UP = 4
"""Tokens of the trial run; enough to touch both the prompt and the one-token kernels."""


class Runner:
    """``world`` is all ranks; the ranks of this rank's stage are split off it. ``step_seconds``: what one token of one
    sequence took in the trial run."""

    def __init__(self, options: RankOptions, world: Group, on_progress: Callable[[Progress], None]) -> None:
        self.options, self.world = options, world
        self.plan = options.plan
        self.step_seconds = 0.0
        self.shard = self.plan.shards[world.rank]
        stage = world.split(color=self.shard.stage, key=self.shard.part)
        assert stage is not None  # only a rank without a colour gets none
        self.stage: Group = stage

        def loaded(done: int, total: int) -> None:
            on_progress(Progress(world.rank, "load", done, total))

        self.model: ShardedModel = build(Path(options.directory), options.dtype, self.shard, self.stage, loaded)

    def run(self, batch: Batch) -> Tensor | None:
        """Compute ``batch``. On the last stage: logits (rows wanted, vocabulary) in float32; on the others None."""
        for identity in batch.released:
            self.model.cache.release(identity)
        if not batch.spans:
            return None
        positions = torch.tensor([batch.positions()])
        rows = torch.tensor(batch.logit_rows(), dtype=torch.long)
        self.model.cache.begin([(span.sequence, span.seen, span.tokens) for span in batch.spans])
        with torch.inference_mode():
            output = self.model.forward(self._inputs(batch), positions, rows)
            self.model.cache.end()
            if self.shard.has_head:
                return output
            self.world.send(output.contiguous(), dst=self.world.rank + self.plan.tensor)
            return None

    def warm_up(self) -> int:
        """Run a trial sequence on all ranks together, and return how many tokens the caches of every rank can hold."""
        self.run(Batch((Span(0, 0, WARM_UP, True),), (0,) * WARM_UP))
        self.run(Batch((Span(0, WARM_UP, 1, True),), (0,)))
        begin = time.perf_counter()
        self.run(Batch((Span(0, WARM_UP + 1, 1, True),), (0,)))
        self.step_seconds = time.perf_counter() - begin
        self.model.check_trial(0)
        per_token = max(1, self.model.cache.sequences[0].bytes_per_token)
        self.run(Batch(released=(0,)))
        free = psutil.virtual_memory().available / self.world.size
        tokens = BUILT_IN_ENGINE.cache_tokens(free, per_token, self.options.max_sequences)
        room = np.array([tokens], dtype=np.int64)
        self.world.all_reduce(room, op="min")
        if room[0] < LEAST_ROOM:
            raise EngineError(
                f"after loading, memory is left for {room[0]} tokens of cache ({per_token:,} bytes each on this rank); "
                "free some memory or use more ranks"
            )
        return int(room[0])

    def _inputs(self, batch: Batch) -> Tensor:
        if self.shard.has_embedding:
            return torch.tensor([batch.tokens])
        hidden = torch.empty(1, len(batch.tokens), self.model.hidden_size, dtype=self.model.dtype)
        self.world.recv(hidden, src=self.world.rank - self.plan.tensor)
        return hidden

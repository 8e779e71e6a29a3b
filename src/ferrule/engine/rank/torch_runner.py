"""A runner that calls transformers' modules: its stage of the model, with activations from the stage before and to the
one after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from ferrule.engine.devices import Device, RankGroup
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.model import ShardedModel, build
from ferrule.engine.rank.probe import output_of
from ferrule.engine.types import Progress
from ferrule.fabric import Group


class TorchRunner:
    """`Runner`. ``stage``: the ranks of this rank's stage; ``alike``: as for `Device.group`."""

    def __init__(
        self,
        options: RankOptions,
        world: Group,
        stage: Group,
        device: Device,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        *,
        alike: bool = True,
    ) -> None:
        self.options, self.world, self.stage, self.plan = options, world, stage, options.plan
        self.shard = self.plan.shards[world.rank]
        self.stages: RankGroup = device.group(world, alike=alike)

        def loaded(done: int, total: int) -> None:
            on_progress(Progress(world.rank, "load", done, total))

        self.device, self.device_title = device, f"{device.title}, transformers"
        directory = Path(options.directory)
        self.model: ShardedModel = build(
            directory,
            options.dtype,
            self.shard,
            device.group(stage, alike=alike),
            device,
            loaded,
            options.weights,
        )
        self.weight_bytes = self.model.weight_bytes
        self.dtype = str(self.model.dtype).removeprefix("torch.")

    def run(self, batch: Batch) -> Tensor | None:
        """See `Runner.run`."""
        for identity in batch.released:
            self.model.cache.release(identity)
        if not batch.spans:
            return None
        inputs, positions, rows = self._uploaded(batch)
        with torch.inference_mode():
            with self._cached(batch):
                output = self.model.forward(inputs, positions, rows)
            if not self.shard.has_head:
                self.stages.send(output.contiguous(), self.world.rank + self.plan.tensor)
                return None
            return output if self.world.rank == self.plan.driver else None

    def capture(self, batch: Batch, depth: int, rows: Sequence[int]) -> Tensor:
        """See `Runner.capture`."""
        layer = list(self.model.base.layers)[depth - 1]  # type: ignore[arg-type]
        given = self._uploaded(batch)
        with torch.inference_mode(), self._cached(batch):
            hidden = output_of(layer, lambda: self.model.forward(*given))
            chosen = hidden.index_select(0, self.device.upload(torch.tensor(rows)))
        return self.device.download(chosen)

    def cache_bytes_per_token(self, sequence: int) -> int:
        """See `Runner.cache_bytes_per_token`."""
        self.model.check_trial(sequence)
        return self.model.cache.sequences[sequence].bytes_per_token

    def state_bytes(self, sequence: int) -> int:
        """See `Runner.state_bytes`."""
        return self.model.cache.sequences[sequence].state.bytes

    def cache_memory(self) -> int:
        """See `Runner.cache_memory`."""
        self.device.synchronize()
        return self.device.memory_free()

    def _cached(self, batch: Batch) -> AbstractContextManager[None]:
        spans = [(span.sequence, span.seen, span.tokens) for span in batch.spans]
        if self.model.cache.asks_tokens and not self.shard.has_embedding:
            self.model.cache.tokens = self.device.upload(torch.tensor([batch.tokens]))
        return self.model.cache.batch(spans, {span.sequence: span.known for span in batch.spans})

    def _uploaded(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of `ShardedModel.forward`."""
        positions = self.device.upload(torch.tensor([batch.positions()]))
        rows = self.device.upload(torch.tensor(batch.logit_rows(), dtype=torch.long))
        if self.shard.has_embedding:
            return self.device.upload(torch.tensor([batch.tokens])), positions, rows
        hidden = self.device.empty((1, len(batch.tokens), self.model.hidden_size), self.model.dtype)
        self.stages.recv(hidden, self.world.rank - self.plan.tensor)
        return hidden, positions, rows

"""A runner of encoders: batches are of whole texts, of which nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ferrule.engine.devices import Device
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch, Kind
from ferrule.engine.rank.encoder.groups import grouped
from ferrule.engine.rank.encoder.model import build
from ferrule.engine.types import Progress, StreamUse
from ferrule.errors import EngineError, PlanError
from ferrule.fabric import Group
from ferrule.model.families.encoders import WHOLE


class EncoderRunner:
    """`Runner` of the only rank."""

    shared: None = None
    copies_blocks = False
    keeps = False

    def __init__(
        self,
        options: RankOptions,
        world: Group,
        device: Device,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        if world.size > 1:
            raise PlanError(f"{WHOLE}, not on {world.size}; use --tp 1 --pp 1")
        self.options, self.world, self.plan, self.device = options, world, options.plan, device
        self.shard = self.plan.shards[world.rank]

        def loaded(done: int, total: int) -> None:
            on_progress(Progress(world.rank, "load", done, total))

        self.encoder = build(Path(options.directory), options.dtype, device, loaded, options.weights)
        self.weight_bytes = self.encoder.weight_bytes
        self.dtype = str(self.encoder.dtype).removeprefix("torch.")
        self.device_title = f"{device.title}, transformers"

    def rejoin(self, world: Group, stage: Group) -> None:
        """See `Runner.rejoin`: a group of one loses no rank."""
        raise EngineError(WHOLE)

    def run(self, batch: Batch, features: Sequence[bytes] = ()) -> Tensor | None:
        """See `Runner.run`: hidden states of whole texts. There are no caches to release, and no images."""
        if not batch.spans:
            return None
        if batch.kind is not Kind.EMBED or any(span.seen for span in batch.spans):
            raise EngineError("an encoder computes whole texts, and no logits")
        texts, end = [], 0
        for span in batch.spans:
            texts.append(batch.tokens[end : end + span.tokens])
            end += span.tokens
        with torch.inference_mode():
            return torch.cat(self.hidden(texts))

    def unshared(self, sequence: int) -> str | None:
        """See `Runner.unshared`."""
        return "an encoder"

    def hidden(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Hidden states (tokens, width) of each of ``texts``, on the device."""
        found: dict[int, Tensor] = {}
        for group in grouped([len(text) for text in texts]):
            lengths = torch.tensor([len(texts[number]) for number in group])
            longest = int(lengths.max())
            tokens = torch.full((len(group), longest), self.encoder.padding)
            for row, number in enumerate(group):
                tokens[row, : len(texts[number])] = torch.tensor(texts[number])
            there = (torch.arange(longest) < lengths.unsqueeze(1)).long()
            hidden = self.encoder.hidden(self.device.upload(tokens), self.device.upload(there))
            for row, number in enumerate(group):
                found[number] = hidden[row, : len(texts[number])]
        return [found[number] for number in range(len(texts))]

    def hidden_states(self, rows: Sequence[int]) -> Tensor:
        """See `Runner.hidden_states`: nothing guesses for an encoder."""
        raise EngineError(WHOLE)

    def follow(self, hidden: Tensor | None) -> None:
        """See `Runner.follow`."""
        raise EngineError(WHOLE)

    def run_ahead(self, batch: Batch, tokens: Tensor) -> Tensor | None:
        """See `Runner.run_ahead`."""
        return None

    def capture(self, batch: Batch, depth: int, rows: Sequence[int]) -> Tensor:
        """See `Runner.capture`, which compares a split model with the whole."""
        raise EngineError(WHOLE)

    def cache_bytes_per_token(self, sequence: int) -> int:
        """See `Runner.cache_bytes_per_token`."""
        return 0

    def state_bytes(self, sequence: int) -> int:
        """See `Runner.state_bytes`."""
        return 0

    @property
    def streams(self) -> str | None:
        """See `Runner.streams`."""
        return None

    def streamed(self) -> StreamUse | None:
        """See `Runner.streamed`."""
        return None

    def cache_memory(self) -> int:
        """See `Runner.cache_memory`."""
        return self.device.memory_free()

    def captured_room(self) -> int:
        """See `Runner.captured_room`."""
        return 0

    def reserve(self, tokens: int, sequences: int, captured_room: int) -> None:
        """See `Runner.reserve`."""

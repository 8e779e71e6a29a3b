"""A runner whose steps are native programs: Python says which tokens, and nothing more per layer or per token."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ferrule._native import STATUS, Program, kernel_instructions
from ferrule.engine.architectures import key_value_heads
from ferrule.engine.devices import Device
from ferrule.engine.options import STEP_TIMEOUT, RankOptions
from ferrule.engine.rank.batch import Batch, Kind
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.cache.shared import SharedBlocks
from ferrule.engine.rank.handover.parts import Held, first_heads
from ferrule.engine.rank.handover.send import Outbox
from ferrule.engine.rank.model import Blueprint, blueprint, restore_buffers
from ferrule.engine.rank.step.assemble import Assembled
from ferrule.engine.rank.step.describe import describe
from ferrule.engine.rank.step.load import load_weights
from ferrule.engine.rank.stream.room import streamed_weights
from ferrule.engine.types import Progress, StreamUse
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.matrix import PackedMatrix
from ferrule.fabric import Group
from ferrule.plan import BLOCK_PAGES, shares_out

OK = STATUS["OK"]


class ProgramBlocks:
    """`BlockStore` of a native program, whose sequences share pages. ``ranks``: among which those are shared out."""

    def __init__(self, program: Program, ranks: int) -> None:
        self.block_bytes = program.block_bytes
        assert BLOCK_PAGES % ranks or self.block_bytes * ranks == BLOCK * program.bytes_per_token
        self.release, self.keep, self.drop = program.release, program.keep, program.drop
        self.read_block, self.write_block = program.read_block, program.write_block
        self._program = program

    def adopt(self, sequence: int, blocks: list[int], known: int) -> None:
        """See `BlockStore.adopt`."""
        self._program.adopt(sequence, blocks)


class StepRunner:
    """`Runner`. ``stage``: the ranks of this rank's stage. ``there``: as of `load_weights`. Raises `Unfit` before
    anything is loaded where the model has no step program."""

    def __init__(
        self,
        options: RankOptions,
        world: Group,
        stage: Group,
        device: Device,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        there: Mapping[str, PackedMatrix] = MappingProxyType({}),
    ) -> None:
        self.options, self.world, self.stage, self.plan = options, world, stage, options.plan
        self.shard = self.plan.shards[world.rank]
        self.device, self.device_title = device, f"{device.title}, {kernel_instructions()}"
        self.device_title += "" if options.kv_cache == "auto" else f", {options.kv_cache} cache"

        def loaded(done: int, total: int) -> None:
            on_progress(Progress(world.rank, "load", done, total))

        directory, mtp = Path(options.directory), options.mtp
        with Checkpoint(directory, options.weights, mtp=mtp) as checkpoint:
            built: Blueprint = blueprint(directory, options.dtype, self.shard, stage, checkpoint, mtp=mtp)
            adapters = built.read(options.adapters) if options.adapters else {}
            self.description = describe(built.model, built.base, self.shard, self.shard.parts, adapters)
            self._streamed = streamed_weights(options, world, device, self.description, built, checkpoint)
            weights = load_weights(built, self.description, checkpoint, loaded, self._streamed, there)
            weights.add(adapters, built.dtype)
            if self._streamed is not None:
                weights.bytes += self._streamed.arrange(weights.matrices, weights.bytes)
        ends = built.model.get_input_embeddings(), built.model.get_output_embeddings()
        names = [f"{name}.weight" for name, module in built.model.named_modules() if module in ends]
        self._ends = {name: weights.matrices[name] for name in names if name in weights.matrices}
        config = built.model.config
        self._heads = int(config.num_attention_heads), key_value_heads(config)
        restore_buffers(built.model, device.torch_device)
        last_norm: Any = built.base.norm if options.gives_hidden and self.shard.has_head else None
        self._last_norm: Callable[[Tensor], Tensor] = last_norm
        self._preceding: Tensor | None = None
        self._weights, self._buffers = weights, dict(built.model.named_buffers())
        self.torch_dtype, self.hidden_size = built.dtype, built.hidden_size
        self.dtype = str(built.dtype).removeprefix("torch.")
        self.weight_bytes = weights.bytes
        self._assemble()

    @property
    def whole_ends(self) -> dict[str, PackedMatrix]:
        """The embedding and the output matrix, by name, as far as this rank has them whole."""
        return self._ends if self.shard.parts == 1 else {}

    @property
    def keeps(self) -> bool:
        """See `Runner.keeps`: a step that ended by half may still have weights read."""
        return self._streamed is None

    def rejoin(self, world: Group, stage: Group) -> None:
        """See `Runner.rejoin`."""
        self.world.take_over(world)
        self.stage.take_over(stage)
        self.shared.close()
        del self.assembled, self.program, self.shared  # and the caches, before others are made
        self._assemble()

    def _assemble(self) -> None:
        """A program that has seen no sequence."""
        options, read_with = self.options, {} if self._streamed is None else self._streamed.read_with
        self.assembled = Assembled(
            self.description, self._weights, self._buffers, self.torch_dtype, self.stage, options.threads,
            options.kv_cache, read_with, self.shard.context > 1,
        )  # fmt: skip
        self.program = self.assembled.program
        self.shared = SharedBlocks(ProgramBlocks(self.program, self.shard.context))
        self.outbox: Outbox | None = None

    @property
    def part_store(self) -> Program:
        """See `HandingRunner.part_store`."""
        return self.program

    @property
    def held(self) -> list[Held]:
        """Key/value heads that this rank keeps of each of its layers."""
        firsts = first_heads(self.description.layers, self.shard, *self._heads)
        return [
            Held(self.shard.first_layer + place, first, each.heads, self.program.part_bytes((place, 0, 1)))
            for place, (first, each) in enumerate(zip(firsts, self.description.layers, strict=True))
        ]

    def run(self, batch: Batch, features: Sequence[bytes] = ()) -> Tensor | None:
        """See `Runner.run`. Models that take images do not run so."""
        self.shared.prepare(batch)
        if not batch.spans:
            return None
        embeds = batch.kind is Kind.EMBED and self.shard.has_head
        rows = range(len(batch.tokens)) if embeds else batch.logit_rows()
        here = self._rows_here(batch)
        self._step(batch, rows, self.description.normed if embeds else 0, here)
        if not self.shard.has_head:
            hidden = self._result("hidden", here, self.hidden_size)
            for rank in self.plan.receivers(self.world.rank):
                self.world.send(hidden.to(self.torch_dtype), dst=rank)
            return None
        if self.world.rank != self.plan.driver:
            return None
        if embeds:
            return self._result("last", len(rows), self.hidden_size)
        return self._result("logits", len(rows), self.description.registers["logits"])

    def hidden_states(self, rows: Sequence[int]) -> Tensor:
        """See `Runner.hidden_states`."""
        hidden = self._result("hidden", max(rows) + 1, self.hidden_size)
        with torch.inference_mode():
            return self._last_norm(hidden[list(rows)])

    def follow(self, hidden: Tensor | None) -> None:
        """See `Runner.follow`."""
        self._preceding = hidden

    def run_ahead(self, batch: Batch, tokens: Tensor) -> Tensor | None:
        """See `Runner.run_ahead`: tokens are in host memory when they are chosen."""
        return None

    def capture(self, batch: Batch, depth: int, rows: Sequence[int]) -> Tensor:
        """See `Runner.capture`."""
        count = len(batch.tokens)
        self._step(batch, (), self.description.depths[depth - self.shard.first_layer - 1], count)
        return self._result("hidden", len(batch.tokens), self.hidden_size)[list(rows)]

    def cache_bytes_per_token(self, sequence: int) -> int:
        """See `Runner.cache_bytes_per_token`: of ranks that share out pages each has as many, up to one of each
        sequence. Of blocks of the prefix cache that must hold of each by itself."""
        fullest = -(-BLOCK_PAGES // self.shard.context) / BLOCK_PAGES if self.options.prefix_cache else 0.0
        return ceil(self.program.bytes_per_token * max(fullest, 1 / self.shard.context))

    def state_bytes(self, sequence: int) -> int:
        """See `Runner.state_bytes`."""
        return 0

    def unshared(self, sequence: int) -> str | None:
        """See `Runner.unshared`."""
        return None

    @property
    def copies_blocks(self) -> bool:
        """See `Runner.copies_blocks`."""
        return False

    @property
    def streams(self) -> str | None:
        """See `Runner.streams`."""
        return None if self._streamed is None else self._streamed.told

    def streamed(self) -> StreamUse | None:
        """See `Runner.streamed`."""
        return None if self._streamed is None else self._streamed.use()

    def cache_memory(self) -> int:
        """See `Runner.cache_memory`."""
        return self.device.memory_free()

    def captured_room(self) -> int:
        """See `Runner.captured_room`."""
        return 0

    def reserve(self, tokens: int, sequences: int, captured_room: int) -> None:
        """See `Runner.reserve`."""

    def _rows_here(self, batch: Batch) -> int:
        """Tokens of ``batch`` that this rank computes: a part where ranks of a context share them out, else all."""
        count, ranks = len(batch.tokens), self.shard.context
        if not shares_out(count, ranks):
            return count
        part = -(-count // ranks)
        return min(part, max(0, count - self.shard.context_part * part))

    def _step(self, batch: Batch, rows: Sequence[int], length: int, here: int) -> None:
        """``here``: how many tokens this rank computes, all or as `_rows_here` says."""
        address, received = 0, None
        if not self.shard.has_embedding:
            sent = torch.empty((here, self.hidden_size), dtype=self.torch_dtype)
            self.world.recv(sent, src=self.plan.source(self.world.rank))
            received = sent.float()
        elif self.options.mtp:
            before = self._preceding
            received = torch.zeros((here, self.hidden_size)) if before is None else before.float().contiguous()
        if received is not None:
            address = received.data_ptr()
        spans = [(span.sequence, span.seen, span.tokens) for span in batch.spans]
        given = spans, batch.tokens, list(rows), address, STEP_TIMEOUT
        lengths, first, status = self.assembled.lengths, 0, OK
        outbox = self.outbox
        try:
            if outbox is not None and (pieces := outbox.pieces(batch)):
                for place, depth in enumerate(self.description.depths):
                    status = self.program.run(*given, lengths[depth], batch.adapters, first)
                    if status != OK:
                        break
                    first = lengths[depth]
                    outbox.layer(place, pieces)
            if status == OK:
                part = here < len(batch.tokens)
                status = self.program.run(*given, lengths[length], batch.adapters, first, part)
        except RuntimeError as error:
            if self._streamed is None:
                raise
            raise self._streamed.file.failed(error) from None
        del received  # its memory must live until here
        if status != OK:
            self.stage.fail(status)

    def _result(self, register: str, rows: int, width: int) -> Tensor:
        """A copy of the first ``rows`` of a register."""
        result = torch.empty((rows, width))
        address = self.program.address(self.assembled.registers[register])
        if rows:
            ctypes.memmove(result.data_ptr(), address, result.nbytes)
        return result

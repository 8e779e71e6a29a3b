"""A runner that calls transformers' modules: its stage of the model, with activations from the stage before and to the
one after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ferrule.engine.architectures import key_value_heads
from ferrule.engine.devices import Device, RankGroup
from ferrule.engine.devices.peers.peer_group import PeerGroup
from ferrule.engine.devices.staging import StagedGroup
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch, Kind
from ferrule.engine.rank.cache.blocks import TensorBlocks
from ferrule.engine.rank.cache.blocks import unfit as unfit_blocks
from ferrule.engine.rank.cache.codes import Codes
from ferrule.engine.rank.cache.pages import PAGE, Layout, Pages, layouts, pages_for
from ferrule.engine.rank.cache.shared import SharedBlocks
from ferrule.engine.rank.captured import CapturedSteps, memory, room, unfit
from ferrule.engine.rank.handover.parts import Held, first_heads
from ferrule.engine.rank.handover.send import Outbox, Piece
from ferrule.engine.rank.handover.tensors import TensorParts
from ferrule.engine.rank.model import ShardedModel, build
from ferrule.engine.rank.probe import output_of
from ferrule.engine.rank.step.operations import CacheLayer
from ferrule.engine.rank.vision.sights import seeing_of
from ferrule.engine.rank.vision.tower import Tower, depths_of
from ferrule.engine.types import Progress, StreamUse
from ferrule.errors import PlanError
from ferrule.fabric import Group


class TorchRunner:
    """`Runner`. ``stage``: the ranks of this rank's stage; ``alike``: as for `Device.group`. ``parts``: ``stage`` for
    tensors of the device, where that is not the device's own way."""

    def __init__(
        self,
        options: RankOptions,
        world: Group,
        stage: Group,
        device: Device,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        *,
        alike: bool = True,
        parts: RankGroup | None = None,
    ) -> None:
        self.options, self.world, self.stage, self.plan = options, world, stage, options.plan
        self.shard = self.plan.shards[world.rank]
        self.stages: RankGroup = device.group(world, alike=alike)

        def loaded(done: int, total: int) -> None:
            on_progress(Progress(world.rank, "load", done, total))

        self.device, self.device_title = device, f"{device.title}, transformers"
        directory = Path(options.directory)
        self._stage = parts or device.group(stage, alike=alike)
        self.model: ShardedModel = build(
            directory,
            options.dtype,
            self.shard,
            self._stage,
            device,
            loaded,
            options.weights,
            options.adapters,
            mtp=options.mtp,
        )
        self._normed: Tensor | None = None
        self._preceding: Tensor | None = None
        if options.gives_hidden and self.shard.has_head:
            self.model.base.register_forward_hook(self._keep_normed)
        self.model.cache.codes = Codes.of(options.kv_cache)
        self.weight_bytes = self.model.weight_bytes
        kernels = self.model.kernels
        if kernels:
            self.device_title += f", packed weights by {', '.join(kernels)}"
        self.device_title += "" if self.model.cache.codes is None else f", {options.kv_cache} cache"
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        seeing = seeing_of(directory)
        self._together = seeing is not None and seeing.together
        self._tower: Tower | None = None
        built = self.model
        if seeing is not None and self.shard.first_layer < max(1, depths_of(built.model.config) - 1):
            self._tower = Tower(built.model, built.base, self.shard, self._stage, device, built.dtype)
        captures = options.graphs and unfit(self.model.base) is None and not isinstance(self._stage, PeerGroup)
        captures = captures and not options.gives_hidden  # which a captured step leaves to the next one's numbers
        self._graphs = device.graphs() if captures else None
        self.shared: SharedBlocks | None = None
        self._layouts: dict[int, Layout] | None = None
        self._graph_memory = 0
        self.captured: CapturedSteps | None = None
        self._parts: TensorParts | None = None
        self.outbox: Outbox | None = None

    @property
    def keeps(self) -> bool:
        """See `Runner.keeps`: devices that exchange by themselves may be stuck in what they do, for a lost one."""
        return not isinstance(self._stage, PeerGroup)

    def rejoin(self, world: Group, stage: Group) -> None:
        """See `Runner.rejoin`."""
        self.device.synchronize()
        self.world.take_over(world)
        self.stage.take_over(stage)
        for group in (self.stages, self._stage):
            if isinstance(group, StagedGroup):
                group.renew()
        if self.shared is not None:
            self.shared.close()
        self.captured = self.shared = self._layouts = self._parts = self.outbox = None
        self._graph_memory = 0
        self.model.cache.clear()
        if self._tower is not None:
            self._tower.clear()

    def run(self, batch: Batch, features: Sequence[bytes] = ()) -> Tensor | None:
        """See `Runner.run`."""
        pieces = [] if self.outbox is None else self.outbox.pieces(batch)
        with self._handing(pieces):
            return self._run(batch, features)

    def _run(self, batch: Batch, features: Sequence[bytes]) -> Tensor | None:
        self._before(batch)
        if not batch.spans:
            return None
        size = None if self.captured is None or batch.handed else self.captured.size(batch)
        with torch.inference_mode():
            if self.captured is not None and size is not None:
                output = self._rows_of(batch, self.captured.run(batch, size, self._receive))
            else:
                with self.device.visible():
                    self._show(features)
                    inputs, positions, rows = self._uploaded(batch)
                    if self.model.mtp_input is not None:
                        self.model.mtp_input.hidden = self._hidden_before(inputs.shape[-1])
                    with self._looking(batch, features), self._cached(batch), self._adapted(batch):
                        if batch.kind is Kind.EMBED and self.shard.has_head:
                            output = self.model.last_hidden(inputs, positions)
                        else:
                            output = self.model.forward(inputs, positions, rows)
            if not self.shard.has_head:
                for rank in self.plan.receivers(self.world.rank):
                    self.stages.send(output.contiguous(), rank)
                    if self._tower is not None and self._tower.passes_on and batch.pictures:
                        self.stages.send(self._tower.given.contiguous(), rank)
                return None
            return output if self.world.rank == self.plan.driver else None

    def hidden_states(self, rows: Sequence[int]) -> Tensor:
        """See `Runner.hidden_states`."""
        assert self._normed is not None  # a batch has run
        with torch.inference_mode():
            return self._normed.index_select(0, self.device.upload(torch.tensor(rows)))

    def follow(self, hidden: Tensor | None) -> None:
        """See `Runner.follow`."""
        self._preceding = hidden

    def run_ahead(self, batch: Batch, tokens: Tensor) -> Tensor | None:
        """See `Runner.run_ahead`. Where there are several ranks they all need the tokens, which the host announces."""
        size = None if self.captured is None or self.world.size > 1 else self.captured.size(batch)
        if self.captured is None or size is None:
            return None
        self._before(batch)
        with torch.inference_mode():
            return self.captured.run(batch, size, self._receive, tokens)

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
        cache = self.model.cache.sequences[sequence]
        self._layouts = layouts(cache)
        return cache.bytes_per_token

    def state_bytes(self, sequence: int) -> int:
        """See `Runner.state_bytes`."""
        return self.model.cache.sequences[sequence].state.bytes

    def unshared(self, sequence: int) -> str | None:
        """See `Runner.unshared`."""
        reason = unfit_blocks(self.model.cache, self.model.base, sequence)
        if reason is None:
            blocks = TensorBlocks(self.model.cache, self.device, sequence)
            self.shared = SharedBlocks(blocks)
            if self._layouts and self.model.cache.codes is None:
                self._parts = TensorParts(blocks, self.device, self._layouts)
        return reason

    @property
    def part_store(self) -> TensorParts:
        """See `HandingRunner.part_store`: keys and values as numbers, of each head."""
        if self._parts is None:
            why = "its layers keep something else of a token than a key and a value of each head"
            if self.model.cache.codes is not None:
                why = f"leave --kv-cache {self.options.kv_cache} out"
            raise PlanError(f"--prefill-tp: the caches of {self.device_title} cannot be handed over: {why}")
        return self._parts

    @property
    def held(self) -> list[Held]:
        """See `HandingRunner.held`."""
        config: Any = self.model.model.config
        config = config.get_text_config()
        heads = int(config.num_attention_heads), key_value_heads(config)
        layouts = self._layouts or {}
        layers = [CacheLayer(layouts[each].heads, layouts[each].key, layouts[each].value) for each in sorted(layouts)]
        return self.part_store.held(first_heads(layers, self.shard, *heads))

    @contextmanager
    def _handing(self, pieces: Sequence[Piece]) -> Iterator[None]:
        """Send what the batch that is run inside keeps of ``pieces``: each layer is on its way to the host while later
        ones are computed."""
        if not pieces or self.outbox is None:
            yield
            return
        outbox, store = self.outbox, self.part_store
        places = {layer: place for place, layer in enumerate(store.layers)}
        hooks = []
        for module in list(self.model.base.layers):  # type: ignore[arg-type]
            number = next((each.layer_idx for each in module.modules() if hasattr(each, "layer_idx")), None)
            if number in places:
                computed = partial(_computed, store, places[number], pieces)
                hooks.append(module.register_forward_hook(computed))
        try:
            yield
            for place in range(len(places)):
                outbox.layer(place, pieces)
        finally:
            store.forget()
            for hook in hooks:
                hook.remove()

    @property
    def copies_blocks(self) -> bool:
        """See `Runner.copies_blocks`."""
        return self.model.cache.pages is None

    @property
    def streams(self) -> str | None:
        """See `Runner.streams`."""
        return None

    def streamed(self) -> StreamUse | None:
        """See `Runner.streamed`."""
        return None

    def cache_memory(self) -> int:
        """See `Runner.cache_memory`."""
        self.device.synchronize()
        free = self.device.memory_free()
        self._graph_memory = memory(free) if self._graphs is not None and self._layouts else 0
        return free - self._graph_memory

    def captured_room(self) -> int:
        """See `Runner.captured_room`."""
        return room(self._graph_memory, self._layouts, self.model.cache.codes) if self._layouts else 0

    def reserve(self, tokens: int, sequences: int, captured_room: int) -> None:
        """See `Runner.reserve`."""
        count = pages_for(tokens, sequences)
        if self._graphs is None or not self._layouts or not captured_room or count * PAGE > 2 * tokens:
            return
        self.model.cache.pages = Pages(self.device, self._layouts, count, self.model.cache.codes)
        self.captured = CapturedSteps(self.model, self._stage, self.device, self._graphs, captured_room)

    def _before(self, batch: Batch) -> None:
        if self._tower is not None:
            self._tower.forget(batch)
        if self.shared is not None:
            self.shared.prepare(batch)
        else:
            for identity in batch.released:
                self.model.cache.release(identity)
        for span in batch.spans:
            self.model.cache.cut(span.sequence, span.seen)

    def _cached(self, batch: Batch) -> AbstractContextManager[None]:
        spans = [(span.sequence, span.seen, span.tokens) for span in batch.spans]
        if self.model.cache.asks_tokens and not self.shard.has_embedding:
            self.model.cache.tokens = self.device.upload(torch.tensor([batch.tokens]))
        blocks: dict[int, list[tuple[int, int]]] = {}
        if self._together:
            for picture in batch.pictures:
                block = picture.begin, picture.begin + picture.tokens
                blocks.setdefault(batch.spans[picture.span].sequence, []).append(block)
        return self.model.cache.batch(spans, {span.sequence: span.known for span in batch.spans}, blocks)

    def _keep_normed(self, module: object, given: object, out: Any) -> None:
        self._normed = out.last_hidden_state[0]

    def _hidden_before(self, tokens: int) -> Tensor:
        """See `MtpInput.hidden`."""
        if self._preceding is None:
            return self.device.empty((1, tokens, self.model.hidden_size), self.model.dtype).zero_()
        return self._preceding.to(self.model.dtype).unsqueeze(0)

    def _show(self, features: Sequence[bytes]) -> None:
        """Send the images' features to the ranks that see. The driver does so when it runs the batch, not when it
        announces that: then no rank that it waits for waits for it."""
        for data in features:
            sent = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            for rank in range(self.plan.tensor):
                if rank != self.plan.driver:
                    self.world.send(sent, rank)

    def _looking(self, batch: Batch, features: Sequence[bytes]) -> AbstractContextManager[None]:
        """Look at the pictures of ``batch``, or be told of them."""
        tower = self._tower
        if tower is None or not batch.pictures:
            return nullcontext()
        if not tower.sees:
            given = self.device.empty((tower.count(batch), tower.depths, self.model.hidden_size), self.model.dtype)
            self._receive(given)
            return tower.told(batch, given)
        if self.world.rank != self.plan.driver:
            features = [self._received(picture.size) for picture in batch.pictures if picture.size]
        return tower.told(batch, tower.look(batch, features))

    def _received(self, size: int) -> bytes:
        data = torch.empty(size, dtype=torch.uint8)
        self.world.recv(data, self.plan.driver)
        return data.numpy().tobytes()

    def _adapted(self, batch: Batch) -> AbstractContextManager[None]:
        adapters = self.model.adapters
        return nullcontext() if adapters is None or not batch.adapters else adapters.chosen(batch, self.device)

    def _uploaded(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of `ShardedModel.forward`."""
        told = torch.tensor(batch.axes).view(3, 1, -1) if batch.axes else torch.tensor([batch.positions()])
        positions = self.device.upload(told)
        rows = self.device.upload(torch.tensor(batch.logit_rows(), dtype=torch.long))
        if self.shard.has_embedding:
            return self.device.upload(torch.tensor([batch.tokens])), positions, rows
        hidden = self.device.empty((1, len(batch.tokens), self.model.hidden_size), self.model.dtype)
        self._receive(hidden)
        return hidden, positions, rows

    def _receive(self, hidden: Tensor) -> None:
        """What the stage before has sent."""
        self.stages.recv(hidden, self.plan.source(self.world.rank))

    def _rows_of(self, batch: Batch, output: Tensor) -> Tensor:
        """Of the logits of all tokens those that are wanted."""
        rows = batch.logit_rows()
        if not self.shard.has_head or len(rows) == len(output):
            return output
        return output.index_select(0, self.device.upload(torch.tensor(rows, dtype=torch.long)))


def _computed(store: TensorParts, place: int, pieces: Sequence[Piece], *_: object) -> None:
    """A hook of a layer."""
    store.fetch(place, pieces)

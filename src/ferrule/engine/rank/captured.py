"""Captured steps: those in which every sequence brings one token and guesses of those behind it, as graphs that are
launched again.

A token is a row, as if each were of a sequence of its own that has the same pages: what a row sees is written before
any looks back. Rows are padded to a power of two, and what they look back on to a bucket of pages, as graphs have fixed
shapes. For each such size one step is captured when it first comes, after it has run once: what lies between two
collectives is then one launch, and no code of the model runs. All ranks decide alike from the batch, so that padding
is the same in what they send each other.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ferrule.engine.devices import Device, Graphs, RankGroup
from ferrule.engine.devices.device import CopyingDevice
from ferrule.engine.devices.script import Script
from ferrule.engine.devices.staging import StagedGroup
from ferrule.engine.rank.attention import ATTEND
from ferrule.engine.rank.batch import Batch, Kind
from ferrule.engine.rank.cache.codes import Codes
from ferrule.engine.rank.cache.pages import NOTHING, PAGE, WASTE, Layout, PagedCache
from ferrule.engine.rank.cache.rows import Rows
from ferrule.engine.rank.model import ShardedModel
from ferrule.engine.rank.recurrent import is_mixer
from ferrule.engine.rank.special_attention import compressed
from ferrule.plan import CAPTURED_SHARE

log = logging.getLogger(__name__)

LEAST_PAGES = 4
"""The smallest bucket of what a row looks back on: 256 tokens."""
MOST_STEPS = 32
"""Sizes whose steps are kept; of more, those that ran last."""
MEMORY = 1 << 30
"""Bytes that captured steps may take, and no more than `CAPTURED_SHARE` of what is free."""
_COPIES = 4
"""Of a layer's keys and values that all rows see: those gathered, and as much again for products made of them."""


def unfit(base: nn.Module) -> str | None:
    """Why the layers of ``base`` cannot be run so: what they do depends on more of a sequence than its place in the
    cache and its length. None where they can."""
    for name, module in base.named_modules():
        if hasattr(module, ATTEND):
            return f"{name} caches latents"
        if compressed.compresses(module):
            return f"{name} caches compressed entries"
        if is_mixer(module):
            return f"{name} keeps a recurrent state"
        kind = getattr(module, "rope_type", "")
        if isinstance(kind, str) and kind in ("longrope", "dynamic"):
            return f"{name} chooses rotary frequencies by a sequence's length"
    return None


def memory(free: int) -> int:
    """Bytes for captured steps, of those that are ``free``."""
    return min(MEMORY, int(free * CAPTURED_SHARE))


def room(memory: int, layers: dict[int, Layout], codes: Codes | None) -> int:
    """Rows times what each looks back on, in tokens, of the largest step that fits into ``memory``."""
    widest = max(layout.bytes for layout in layers.values())
    return memory // (_COPIES * widest * (1 if codes is None else codes.unpacked))


class Size(NamedTuple):
    """``rows`` and ``pages`` of each."""

    rows: int
    pages: int


class CapturedSteps:
    """Steps of ``model``, whose caches are in pages. ``stage``: the ranks that share its layers. ``room``: rows times
    tokens looked back on, the same on all ranks."""

    def __init__(self, model: ShardedModel, stage: RankGroup, device: Device, graphs: Graphs, room: int) -> None:
        self._model, self._stage, self._device, self._graphs, self._room = model, stage, device, graphs, room
        self.steps: OrderedDict[Size, Step] = OrderedDict()

    def size(self, batch: Batch) -> Size | None:
        """That of ``batch``, where it is to be run so. It depends on the batch alone."""
        if batch.kind is Kind.EMBED or batch.adapters or batch.pictures:
            return None
        if any(span.tokens - span.drafted != 1 or span.seen == 0 for span in batch.spans):
            return None
        pages = -(-max(span.seen + span.tokens for span in batch.spans) // PAGE)
        size = Size(_power(len(batch.tokens)), max(LEAST_PAGES, _power(pages)))
        return size if size.rows * size.pages * PAGE <= self._room else None

    def run(self, batch: Batch, size: Size, hidden: Callable[[Tensor], object], tokens: Tensor | None = None) -> Tensor:
        """What the stage makes of ``batch``: see `ShardedModel.forward`, with a row for each token. It holds until
        the next batch. ``hidden`` fills in what the stage before has sent. ``tokens``: on the device, in the place of
        those of ``batch``."""
        step = self.steps.get(size)
        if step is None:
            step = self.steps[size] = Step(self._model, self._stage, self._device, self._graphs, size)
            if len(self.steps) > MOST_STEPS:
                self._device.synchronize()  # what is dropped may be running
                self.steps.popitem(last=False)
        self.steps.move_to_end(size)
        sequences = [self._model.cache.sequences[span.sequence] for span in batch.spans]
        step.write(batch, [each for each in sequences if isinstance(each, PagedCache)])
        if tokens is not None:
            step.inputs[: len(tokens)].copy_(tokens)
        if step.hidden is not None:
            hidden(step.hidden)
        captures = not step.script.refused
        found = step.script.run(step.forward)
        if captures and step.script.refused:
            log.warning("steps of %d rows are not captured: %s", size.rows, step.script.refused)
        for span, sequence in zip(batch.spans, sequences, strict=True):
            sequence.advance(span.tokens)
        return found[: len(batch.tokens)] if self._model.shard.has_head else found


class Step:
    """The step of one size, and what it reads: ``inputs`` (tokens, positions, rotary positions, places, tables of
    pages) and what the stage before has sent, ``hidden``, both at addresses that stay."""

    def __init__(self, model: ShardedModel, stage: RankGroup, device: Device, graphs: Graphs, size: Size) -> None:
        copying: Any = device  # one that has graphs has memory of its own
        self._model, self._stage, self._size = model, stage, size
        self._device: CopyingDevice = copying
        self.inputs = device.empty((size.rows * (4 + size.pages),), torch.long)
        self.hidden: Tensor | None = None
        if model.stage_input is not None:
            self.hidden = device.empty((1, size.rows, model.hidden_size), model.dtype)
        self.script = Script(copying, graphs)

    def write(self, batch: Batch, caches: list[PagedCache]) -> None:
        """Bring what is to be computed to the device, in one copy."""
        rows, pages = self._size
        spare = rows - len(batch.tokens)
        positions: list[int] = []
        places: list[int] = []
        table: list[int] = []
        for span, cache in zip(batch.spans, caches, strict=True):
            new = range(cache.length, cache.length + span.tokens)
            cache.pool.reserve(cache, new.stop)
            positions += new
            places += (cache.pages[position // PAGE] * PAGE + position % PAGE for position in new)
            table += (cache.pages + [NOTHING] * (pages - len(cache.pages))) * len(new)
        turned = batch.axes[: len(positions)] or positions  # of an answer's tokens all axes are equal
        given = [*batch.tokens, *[0] * spare, *positions, *[0] * spare, *turned, *[0] * spare]
        given += [*places, *[WASTE] * spare]
        values = torch.tensor(given + table + [NOTHING] * (spare * pages))
        self.inputs.copy_(self._device.pinned(tuple(values.shape), values.dtype).copy_(values), non_blocking=True)

    def forward(self) -> Tensor:
        """Start the work of the stage."""
        rows, pages = self._size
        tokens, positions, turned, places, table = torch.split(self.inputs, [rows, rows, rows, rows, rows * pages])
        cache = self._model.cache
        assert cache.pages is not None
        cache.rows = Rows(cache.pages, positions, places, table.view(rows, pages))
        given = tokens.unsqueeze(0) if self.hidden is None else self.hidden
        chosen = torch.arange(rows, device=positions.device)
        try:
            with torch.inference_mode(), self._scripted():
                return self._model.forward(given, turned.unsqueeze(0), chosen)
        finally:
            cache.rows = None

    def _scripted(self) -> AbstractContextManager[None]:
        return self._stage.in_script(self.script) if isinstance(self._stage, StagedGroup) else nullcontext()


def _power(count: int) -> int:
    """The least power of two that is no less."""
    return 1 << (count - 1).bit_length()

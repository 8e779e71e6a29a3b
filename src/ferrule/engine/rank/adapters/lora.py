"""Products of LoRA adapters, each over the rows of a batch that belong to its sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ferrule.engine.devices import Device
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.layers import GatheredLinear, RowParallelLinear
from ferrule.errors import EngineError

Rows = slice | Tensor
"""Rows of a batch: those of sequences side by side, or their numbers."""


@dataclass(frozen=True)
class Lora:
    """An adapter's part of a layer on this rank: ``scale`` * B A x. ``a`` (rank, inputs), ``b`` (outputs, rank)."""

    a: Tensor
    b: Tensor
    scale: float

    def add(self, y: Tensor, x: Tensor, rows: Rows) -> None:
        """To ``rows`` of ``y`` (tokens, outputs), what those of ``x`` (tokens, inputs) give."""
        low = x[rows].to(self.a.dtype) @ self.a.T
        if isinstance(rows, slice):
            y[rows] += (low @ self.b.T).to(y.dtype) * self.scale
        else:
            y.index_add_(0, rows, (low @ self.b.T).to(y.dtype), alpha=self.scale)


class Adapters:
    """The adapters of a rank. ``bytes``: of their matrices there."""

    def __init__(self) -> None:
        self.bytes = 0
        self._rows: Mapping[int, Rows] = {}
        self._tokens = 0

    def adapt(self, name: str, module: nn.Module, by_number: Mapping[int, Lora]) -> None:
        """Have ``module``, called ``name``, add what the adapters of these numbers give to its products, before ranks
        put these together."""
        own = "product" if isinstance(module, RowParallelLinear | GatheredLinear) else "forward"
        base: Callable[[Tensor], Tensor] = getattr(module, own)

        def adapted(x: Tensor) -> Tensor:
            y = base(x)
            if not self._rows:
                return y
            given, found = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
            if len(given) != self._tokens:
                raise EngineError(
                    f"{name} computes {len(given)} rows of {self._tokens} tokens, so it cannot be adapted"
                )
            for number, rows in self._rows.items():
                if number in by_number:
                    by_number[number].add(found, given, rows)
            return found.view(y.shape)

        setattr(module, own, adapted)
        self.bytes += sum(each.nbytes for lora in by_number.values() for each in (lora.a, lora.b))

    @contextmanager
    def chosen(self, batch: Batch, device: Device) -> Iterator[None]:
        """While ``batch`` is computed."""
        self._tokens = len(batch.tokens)
        self._rows = {number: _rows(ranges, device) for number, ranges in ranges_of(batch).items()}
        try:
            yield
        finally:
            self._rows = {}


def ranges_of(batch: Batch) -> dict[int, list[range]]:
    """Places of ``batch`` that belong to each adapter, those side by side in one range."""
    found: dict[int, list[range]] = {}
    end = 0
    for span, number in zip(batch.spans, batch.adapters, strict=True):
        start, end = end, end + span.tokens
        if not number:
            continue
        ranges = found.setdefault(number, [])
        if ranges and ranges[-1].stop == start:
            start = ranges.pop().start
        ranges.append(range(start, end))
    return found


def _rows(ranges: Sequence[range], device: Device) -> Rows:
    if len(ranges) == 1:
        return slice(ranges[0].start, ranges[0].stop)
    return device.upload(torch.tensor([place for each in ranges for place in each]))

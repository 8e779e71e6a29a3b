"""Weights of a step program that are read from disk: written while they are loaded, then arranged by a plan."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec
import torch

from ferrule._native import WeightFile, WeightPool
from ferrule.config import environment, model_settings
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.step.operations import Description, Embed, Experts, HeadProduct, Operation, Product, head_part
from ferrule.engine.rank.stream.disk import READERS, whole_pages
from ferrule.engine.rank.stream.matrix_file import MatrixFile
from ferrule.engine.rank.stream.window import Layers, Pace, Window, least_room, plan_window
from ferrule.engine.types import StreamUse
from ferrule.engine.weights.matrix import PackedMatrix
from ferrule.errors import PlanError
from ferrule.files import cache_directory
from ferrule.units import format_bytes

log = logging.getLogger(__name__)

_PAUSE = 1e-3
"""Seconds of a step beside its products."""
_COPIED = 32 << 20


@dataclass(frozen=True)
class Part:
    """Matrices that are read together: those of the operations ``first`` to ``last`` of a description."""

    first: int
    last: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class LayerParts:
    """Parts of one layer: what all tokens need, by operation; matrices of each expert, and how many of these a token
    chooses."""

    dense: tuple[Part, ...]
    experts: tuple[tuple[str, ...], ...] = ()
    chosen: int = 0


def folder_of(rank: int) -> Path:
    """Where this rank's files are, in a directory for each model: in the user's cache, or that of models."""
    return (model_settings(environment()).cache or cache_directory()) / "streamed" / f"rank-{rank}"


def layer_parts(description: Description) -> list[LayerParts]:
    """By layer; without matrices that something else needs, too."""
    uses = Counter(name for each in description.operations for name in _matrices(each))
    found = []
    for first, last in description.spans:
        operations = description.operations[first:last]
        dense = [
            Part(place, place + 1, tuple(name for name in _matrices(each) if uses[name] == 1))
            for place, each in enumerate(operations, first)
        ]
        mixtures = [each for each in operations if isinstance(each, Experts)]
        experts = tuple((f"{each.gate_up}[{i}]", f"{each.down}[{i}]") for each in mixtures for i in range(each.held))
        chosen = max((each.chosen for each in mixtures), default=0)
        found.append(LayerParts(tuple(part for part in dense if part.names), experts, chosen))
    return found


def joined(parts: Sequence[Part], size: Callable[[Part], int], most: int) -> list[Part]:
    """Those that follow each other as one, as long as that is no larger than ``most``: small reads are slow."""
    found: list[Part] = []
    for part in parts:
        both = Part(found[-1].first, part.last, (*found[-1].names, *part.names)) if found else part
        if found and size(both) <= most:
            found[-1] = both
        else:
            found.append(part)
    return found


def _matrices(operation: Operation) -> tuple[str, ...]:
    """What it needs for all tokens."""
    match operation:
        case Embed():
            return (operation.table,)
        case Product():
            return operation.matrices
        case HeadProduct():
            heads = range(operation.heads)
            return tuple(head_part(operation.weight, operation.part, head) for head in heads)
    return ()


class StreamedWeights:
    """Matrices of the layers of ``description``, in a file of this rank. ``expected``: bytes of that. ``room``: bytes
    of memory for all weights."""

    def __init__(
        self, options: RankOptions, rank: int, description: Description, dtype: torch.dtype, expected: int, room: int
    ) -> None:
        self.layers, self.dtype, self.rank, self.room = layer_parts(description), dtype, rank, room
        by_layer = ((*(part.names for part in layer.dense), *layer.experts) for layer in self.layers)
        self._names = {name for parts in by_layer for names in parts for name in names}
        told = (options.identity or options.directory, options.weights, str(dtype), options.plan.stages, rank)
        name = blake2b(msgspec.json.encode(told), digest_size=16).hexdigest()
        self.file = MatrixFile(folder_of(rank) / name, expected)
        self._pools: list[WeightPool] = []
        self._experts: WeightPool | None = None
        self.read_with: dict[tuple[int, int], PackedMatrix] = {}
        """Of parts that are read with every step, by their operations: one of their matrices."""
        self.told = ""

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def kept(self, name: str) -> PackedMatrix | None:
        """A matrix that is in the file, without its data."""
        return self.file.kept(name, self.dtype)

    def keep(self, name: str, matrix: PackedMatrix) -> PackedMatrix:
        """Write one; what is returned has no data."""
        self.file.keep(name, matrix)
        found = self.kept(name)
        assert found is not None
        return found

    def arrange(self, matrices: dict[str, PackedMatrix], ends: int) -> int:
        """Load what stays in memory, and begin to read the rest. ``ends``: bytes of what is in memory beside layers.
        Returns the bytes that these take. Raises `PlanError` and `EngineError`."""
        self.file.finish()
        self._names &= {name for name in self._names if name in self.file}
        descriptor, disk, how = self.file.open()
        try:
            memory = _copy_rate()
            parts = self._parts()
            layers = Layers(
                tuple(self._bytes(part.names) for part in parts),
                max((self._bytes(expert) for layer in self.layers for expert in layer.experts), default=0),
                sum(len(layer.experts) for layer in self.layers),
                max(layer.chosen for layer in self.layers),
            )
            window = plan_window(layers, self.room - ends, Pace(disk, memory, _PAUSE + ends / memory))
            if window is None:
                needed = ends + least_room(layers)
                raise PlanError(
                    f"rank {self.rank} needs {format_bytes(needed)} of memory for weights, although those of layers "
                    f"are read from disk, and has {format_bytes(self.room)} for that; give --stream-weights a larger "
                    "size, or use more ranks",
                    needed=needed,
                    available=self.room,
                )
            file = WeightFile(descriptor, READERS)
        finally:
            os.close(descriptor)
        return self._place(matrices, parts, window, file, f"{format_bytes(round(disk))}/s {how}")

    def _parts(self) -> list[Part]:
        """What all tokens need, of all layers."""

        def size(part: Part) -> int:
            return self._bytes(part.names)

        most = max(size(part) for layer in self.layers for part in layer.dense)
        return [part for layer in self.layers for part in joined(layer.dense, size, most)]

    def _place(
        self, matrices: dict[str, PackedMatrix], parts: Sequence[Part], window: Window, file: WeightFile, disk: str
    ) -> int:
        held = 0
        read = [parts[place] for place in window.read]
        dense = [part.names for part in read]
        if dense:
            pool = self._pool(file, dense, matrices, window.slots, cyclic=True)
            self.read_with = {(part.first, part.last): matrices[part.names[0]] for part in read}
            held += pool.bytes
        experts = [expert for layer in self.layers for expert in layer.experts]
        if window.experts is not None:
            self._experts = self._pool(file, experts, matrices, window.experts, cyclic=False)
            held += self._experts.bytes
        away = {name for part in (*dense, *(experts if window.experts is not None else ())) for name in part}
        for name in self._names - away:
            self.file.load(name, matrices[name])
            held += matrices[name].bytes
        self.read_bytes = sum(self._bytes(part) for part in dense)
        self.stored_bytes = sum(self._bytes((name,)) for name in away)
        buffers = f"{window.slots} buffer{'s' if window.slots > 1 else ''}"
        told = [f"{len(dense)} of {len(parts)} parts of layers into {buffers}"] if dense else []
        if window.experts is not None:
            told.append(f"experts, {window.experts} of {len(experts)} in memory")
        self.told = f"{' and '.join(told) or 'nothing'} from a disk of {disk}"
        log.info("weights are streamed: %s", self.told)
        return held

    def _pool(
        self,
        file: WeightFile,
        parts: list[tuple[str, ...]],
        matrices: dict[str, PackedMatrix],
        slots: int,
        *,
        cyclic: bool,
    ) -> WeightPool:
        pool = WeightPool(file, [[self.file.extent(name) for name in part] for part in parts], slots, cyclic)
        for number, part in enumerate(parts):
            for index, name in enumerate(part):
                matrices[name].matrix.stream(pool, number, index)
        self._pools.append(pool)
        return pool

    def _bytes(self, names: tuple[str, ...]) -> int:
        return sum(whole_pages(self.file.extent(name)[1]) for name in names)

    def use(self) -> StreamUse:
        """Since the start."""
        used = [pool.use() for pool in self._pools]
        read, waited = sum(each[2] for each in used), sum(each[3] for each in used)
        hits, misses = self._experts.use()[:2] if self._experts is not None else (0, 0)
        rate = round(hits / (hits + misses), 4) if hits + misses else None
        return StreamUse(self.stored_bytes, self.read_bytes, read, round(waited, 3), hits, misses, rate)


def _copy_rate() -> float:
    """Bytes per second by which one thread copies memory: at least so fast a step passes over weights there."""
    there, to = ctypes.create_string_buffer(_COPIED), ctypes.create_string_buffer(_COPIED)
    ctypes.memset(to, 1, _COPIED)
    began = time.perf_counter()
    ctypes.memmove(to, there, _COPIED)
    return _COPIED / max(time.perf_counter() - began, 1e-9)

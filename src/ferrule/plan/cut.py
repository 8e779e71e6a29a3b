"""Cut of the layers into pipeline stages: exact, for stages in a given order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ferrule.errors import PlanError

Floats = NDArray[np.float64]
Aim = Literal["sum", "max"]


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """Bytes on one device of a stage: ``by_layer``, what it holds whichever layers it has (``always``), and what the
    first and the last stage hold beside. ``tied``: what is saved where one stage is both."""

    room: float
    by_layer: Floats
    always: float = 0.0
    first: float = 0.0
    last: float = 0.0
    tied: float = 0.0

    @cached_property
    def runs(self) -> Floats:
        """Bytes held for any run of layers."""
        held = _runs(self.by_layer, self.always, self.first, self.last)
        held[0, -1] -= self.tied
        return held

    @property
    def all_held(self) -> float:
        """Bytes for all layers."""
        return self.always + float(self.by_layer.sum()) + self.first + self.last - self.tied

    @cached_property
    def reach(self) -> NDArray[np.intp]:
        """By layer: behind which layer before the last a run from there can end; itself where none fits."""
        before = np.concatenate(([0.0], np.cumsum(self.by_layer)))
        limits = before + (self.room - self.always)
        limits[0] -= self.first
        places = np.arange(len(before))
        behind = np.searchsorted(before, limits, "right") - 1
        return np.maximum(np.minimum(behind, len(before) - 2), places)

    @cached_property
    def last_from(self) -> int:
        """The first layer but the very first from which all layers to the last have room."""
        behind = np.concatenate((np.cumsum(self.by_layer[::-1])[::-1], [0.0])) + (self.always + self.last)
        return max(1, int(np.searchsorted(-behind, -self.room, "left")))


@dataclass(frozen=True, eq=False)
class StageTable:
    """Costs of any run of layers on some devices: ``by_layer`` seconds, ``first`` for what precedes the first layer,
    ``last`` for what follows the last, ``always`` for any stage."""

    by_layer: Floats
    memory: tuple[DeviceMemory, ...]
    always: float = 0.0
    first: float = 0.0
    last: float = 0.0

    @property
    def layers(self) -> int:
        return len(self.by_layer)

    @cached_property
    def before(self) -> Floats:
        """Seconds of the layers before each."""
        return np.concatenate(([0.0], np.cumsum(self.by_layer)))

    @property
    def all_seconds(self) -> float:
        """Of all layers, on one stage."""
        return float(self.by_layer.sum()) + self.always + self.first + self.last

    @cached_property
    def reach(self) -> NDArray[np.intp]:
        """Of the device with least room, as in `DeviceMemory`."""
        layers = self.layers
        every = np.maximum(layers - 1, np.arange(layers + 1))
        found: NDArray[np.intp] = np.minimum.reduce([every, *(use.reach for use in self.memory)])
        return found

    @cached_property
    def all_fit(self) -> bool:
        return all(use.all_held <= use.room for use in self.memory)

    @cached_property
    def last_from(self) -> int:
        return max((use.last_from for use in self.memory), default=1)

    @property
    def has_room(self) -> bool:
        """For any layer, beside others before and behind."""
        places = np.arange(self.layers + 1)
        return bool((self.reach > places).any()) or self.last_from < self.layers

    def no_better_than(self, other: StageTable) -> bool:
        """For any run of layers."""
        return (
            other.always <= self.always
            and other.always + other.first <= self.always + self.first
            and other.always + other.last <= self.always + self.last
            and other.last_from <= self.last_from
            and bool((other.by_layer <= self.by_layer).all() and (other.reach >= self.reach).all())
        )

    @cached_property
    def runs(self) -> Floats:
        """``runs[a, b]``: seconds for layers a up to b (not included); infinite where they do not fit or are none."""
        total = _runs(self.by_layer, self.always, self.first, self.last)
        allowed = np.triu(np.ones_like(total, dtype=bool), 1)
        for use in self.memory:
            allowed &= use.runs <= use.room
        return np.where(allowed, total, np.inf)

    @cached_property
    def runs_back(self) -> Floats:
        """``runs_back[b, i]``: for layers from the i-th last boundary up to b."""
        return np.ascontiguousarray(self.runs[::-1].T)


@dataclass(frozen=True)
class Cut:
    """``seconds``: the sum over all stages or the slowest one; ``ends``: behind which layer each stage ends."""

    seconds: float
    ends: tuple[int, ...]


def _runs(by_layer: Floats, always: float, first: float, last: float) -> Floats:
    before = np.concatenate(([0.0], np.cumsum(by_layer)))
    total: Floats = before[None, :] - before[:, None] + always
    total[0] += first
    total[:, -1] += last
    return total


def cut_layers(stages: Sequence[StageTable], aim: Aim, *, cap: float = np.inf) -> Cut | None:
    """The best cut for ``stages`` in this order, each with at least one layer and none longer than ``cap``; None where
    nothing fits.

    Dynamic programming over (stage, layer) in O(stages * layers^2): the best way to have placed the first b layers on
    the first s stages only depends on the best ways to have placed a < b of them on s - 1. Of equally good cuts that
    with more layers in earlier stages.
    """
    best = np.full(stages[0].layers + 1, np.inf)
    best[0] = -np.inf if aim == "max" else 0.0
    every = np.arange(len(best))
    choices = []
    for stage in stages:
        runs = stage.runs_back
        options = np.maximum(best[::-1], runs) if aim == "max" else best[::-1] + runs
        if cap < np.inf:
            options[runs > cap] = np.inf
        behind = options.argmin(axis=1)
        best = options[every, behind]
        choices.append(len(best) - 1 - behind)
    if not np.isfinite(best[-1]):
        return None
    ends = [len(best) - 1]
    for choice in reversed(choices[1:]):
        ends.append(int(choice[ends[-1]]))
    return Cut(float(best[-1]), tuple(reversed(ends)))


def split_layers(
    layer_bytes: Sequence[int], stages: int, first_extra: int = 0, last_extra: int = 0
) -> list[tuple[int, int]]:
    """Cut the layers into ``stages`` half-open ranges so that the largest stage is as small as possible.

    ``first_extra`` and ``last_extra`` are bytes that the first stage (embedding) and the last (norm, head) hold
    beside their layers. Raises `PlanError` where there are fewer layers than stages.
    """
    layers = len(layer_bytes)
    if stages > layers:
        raise PlanError(f"{layers} layers cannot fill {stages} pipeline stages; use --pp {layers} or less")
    table = StageTable(np.array(layer_bytes, dtype=float), (), first=first_extra, last=last_extra)
    cut = cut_layers([table] * stages, "max")
    assert cut is not None  # nothing has to fit
    return list(pairwise((0, *cut.ends)))

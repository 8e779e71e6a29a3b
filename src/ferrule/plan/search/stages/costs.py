"""The cost model as the search needs it: seconds and bytes by layer for some devices, and what hops cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from ferrule.errors import PlanError
from ferrule.model.layer import WHOLE, LayerSpec, Share
from ferrule.plan.cost.exchange import Exchange
from ferrule.plan.cost.memory import activation_bytes, draft_bytes, vocabulary_of
from ferrule.plan.cost.messages import announcement, entry_seconds, message_bytes, pieces, word_bytes
from ferrule.plan.cost.stage import Loads, Pass, StageCost
from ferrule.plan.cut import DeviceMemory, Floats, StageTable
from ferrule.plan.plan import Stage, fellows
from ferrule.plan.question import Question
from ferrule.plan.remembered import remembered


@dataclass(frozen=True)
class Measure:
    """Pass that is timed: one token of each of ``batch`` sequences, or one prompt."""

    kind: Literal["token", "prompt"]
    batch: int = 1


@dataclass(frozen=True)
class Cutting:
    """A stage without layers: some devices, and the part of every layer that each has."""

    devices: tuple[str, ...]
    shares: tuple[Share, ...] = (WHOLE,)
    experts: bool = False
    exchange: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """A search looks each up many times."""
        return hash((self.devices, self.shares, self.experts, self.exchange))

    @classmethod
    def of(cls, stage: Stage) -> Cutting:
        return cls(stage.devices, stage.shares, stage.experts, stage.exchange)

    def stage(self, first: int, last: int) -> Stage:
        return Stage(self.devices, first, last, self.shares, self.experts, self.exchange)


class StageCosts:
    """Of the question's model on devices of its cluster. ``everywhere``: any device of the cluster may relay messages,
    also those that a plan leaves out (so that none is thought dearer than it is); else only those of the same stages.
    ``pieces`` and ``proportions``: for `cuttings_of` to keep."""

    def __init__(self, question: Question, *, everywhere: bool = True) -> None:
        self.question = question
        self.model = model = question.held
        self.cluster, self.runtime = question.cluster, question.runtime
        self._everywhere = everywhere
        self._kinds: dict[LayerSpec, int] = {}
        self._kind_of = np.array([self._kinds.setdefault(layer, len(self._kinds)) for layer in model.decoder])
        self._short = question.of(replace(model, decoder=tuple(self._kinds)))  # each kind of layer once
        self.pieces: dict[Cutting, tuple[float, float, int, float]] = {}
        self.proportions: dict[tuple[tuple[str, ...], Share], tuple[tuple[int, ...] | None, ...]] = {}
        self._ends: dict[tuple[object, ...], tuple[float, float]] = {}
        self._loads: Loads = {}

    @cached_property
    def exchanges(self) -> bool:
        """Whether the engine can send the model's tokens to their experts."""
        programs = self.question.engine.program_end_operations is not None
        return programs and self.model.exchange_obstacle is None

    @cached_property
    def _exchange(self) -> Exchange:
        return Exchange(self.cluster, [device.name for device in self.cluster.devices])

    def passes(self, measure: Measure) -> Iterator[Pass]:
        if measure.kind == "token":
            yield Pass(1, self.question.work.seen, measure.batch)
            return
        yield from pieces(self.question)

    def table(self, cutting: Cutting, measure: Measure) -> StageTable:
        """Seconds and bytes for any run of layers on these devices; all infinite where no cables join them."""
        by_kind, always, first, last = self._time(cutting, measure)
        return StageTable(by_kind[self._kind_of], self.memory(cutting), always, first, last)

    @remembered
    def _time(self, cutting: Cutting, measure: Measure) -> tuple[Floats, float, float, float]:
        """Of each kind of layer, of any stage, of what precedes the first layer, and of what follows the last."""
        by_kind: Floats = np.zeros(len(self._kinds))
        try:
            cost = self._stage_cost(cutting)
            for which in self.passes(measure):
                by_kind += [seconds.total for seconds in cost.layers(which)]
            first, last = self._end_seconds(cutting, measure, cost)
        except PlanError:  # no cables join them
            return np.zeros(len(self._kinds)), np.inf, 0.0, 0.0
        return by_kind, 0.0, first, last

    def _end_seconds(self, cutting: Cutting, measure: Measure, cost: StageCost) -> tuple[float, float]:
        """The same however the layers are cut."""
        parts = tuple(vocabulary_of(self.model, cutting.stage(0, 1), share) for share in cutting.shares)
        key = (cutting.devices, parts, measure)
        if key not in self._ends:
            every = list(self.passes(measure))
            self._ends[key] = sum(cost.first(one).total for one in every), sum(cost.last(one).total for one in every)
        return self._ends[key]

    def with_context(self, context: int) -> StageCosts:
        """The same with room for other contexts: that changes no times."""
        for name in ("_time", "_stage_cost", "_exchange_of", "_without_context", "_pair"):
            getattr(self, name)  # there before the copy, so that both know the same
        other = copy(self)
        other.question, other.pieces = self.question.with_work(context=context), {}
        for name in ("memory", "_device_memory", "_held"):
            vars(other).pop(name, None)
        return other

    @remembered
    def _stage_cost(self, cutting: Cutting) -> StageCost:
        stage = replace(cutting.stage(0, 1), last_layer=self.model.layers)
        return StageCost(self._short, stage, self._exchange_of(cutting.devices), loads=self._loads)

    @remembered
    def _exchange_of(self, devices: tuple[str, ...]) -> Exchange:
        return self._exchange if self._everywhere else Exchange(self.cluster, devices)

    @remembered
    def memory(self, cutting: Cutting) -> tuple[DeviceMemory, ...]:
        stage = cutting.stage(0, self.model.layers)
        parts = zip(cutting.devices, cutting.shares, strict=True)
        return tuple(self._device_memory(name, share, vocabulary_of(self.model, stage, share)) for name, share in parts)

    def part_of_memory(self, name: str, share: Share) -> DeviceMemory:
        """Of a device with ``share`` of what others have the rest of: with its part of the vocabulary."""
        return self._device_memory(name, share, share.width)

    @remembered
    def _device_memory(self, name: str, share: Share, vocabulary: float) -> DeviceMemory:
        """As `memory_of` counts it; activations as if the widest layer of the model were on every stage."""
        device, held = self.cluster.by_name[name], self._held(share, vocabulary)
        always = held.always + device.runtime_bytes
        return DeviceMemory(float(device.memory), held.by_layer, always, held.first, held.last, held.tied)

    @remembered
    def _held(self, share: Share, vocabulary: float) -> DeviceMemory:
        """By any device, without a process."""
        weights, none = self._without_context(share, vocabulary)
        work, policy = self.question.work, self.runtime.cache_of(self.model)
        room = self.runtime.cache_room(self.question.model, work.context, work.concurrency)
        cache = [
            layer.cache_bytes(work.context, policy, share) * room.keys + layer.state_bytes(policy) * room.state
            for layer in self._kinds
        ]
        drafted = draft_bytes(self.question, work.context) * room.keys
        return replace(none, by_layer=(weights + cache)[self._kind_of], last=none.last + drafted)

    @remembered
    def _without_context(self, share: Share, vocabulary: float) -> tuple[Floats, DeviceMemory]:
        """Weights by kind of layer, and all that is held beside layers."""
        model = self.model
        part = Stage(("",), 0, len(self._kinds))
        inner, whole = (activation_bytes(each, part, share) for each in (self._inner, self._short))
        head = float(model.head.held(vocabulary))
        draft = 0.0 if model.draft is None else float(model.draft.bytes)  # as if every rank of the last stage had it
        weights: Floats = np.array([float(layer.held_bytes(share)) for layer in self._kinds])
        beside = DeviceMemory(
            room=0.0,
            by_layer=weights,
            always=inner + 2.0,  # 2: rounding
            first=float(model.embedding.held(vocabulary) + model.vision.held(1.0)),
            last=head + model.final.held(1.0) + whole - inner + draft,
            tied=head if model.tied else 0.0,
        )
        return weights, beside

    @cached_property
    def _inner(self) -> Question:
        """The same with one layer more, so that a stage of the others is not the last one."""
        short = self._short.model
        return self._short.of(replace(short, decoder=(*short.decoder, short.decoder[0])))

    def hop(self, here: Sequence[str], there: Sequence[str], measure: Measure, *, last: bool = False) -> float:
        """Seconds from one stage to the next, or (``last``) of word of the next step from the last stage back to the
        first; infinite where there is no path."""
        passes = list(self.passes(measure))
        sizes = [word_bytes(self.runtime, one) if last else message_bytes(self.question, one, 1) for one in passes]
        pairs = [self._pair(here[a], b) for a, b in zip(fellows(len(there), len(here)), there, strict=True)]
        slowest = sum(max(alpha + size * beta for alpha, beta in pairs) for size in sizes)
        return slowest + entry_seconds(self.question, there, last=last) * len(passes)

    @remembered
    def _pair(self, a: str, b: str) -> tuple[float, float]:
        if a == b:
            return np.inf, 0.0
        try:
            route = self._exchange_of((a, b)).route(a, b)
        except PlanError:
            return np.inf, 0.0
        return route.alpha, route.beta

    def announcement(self, cutting: Cutting) -> float:
        """Seconds in which a step on one stage waits for the driver's word; infinite where it does not come."""
        try:
            return announcement(self._exchange_of(cutting.devices), self.runtime, cutting.devices)[0]
        except PlanError:
            return np.inf

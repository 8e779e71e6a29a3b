"""Cost of one pass through one stage, layer by layer: the roofline of each device, operations, collectives, disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ferrule.model.layer import Collective, LayerSpec, Share
from ferrule.plan.cluster.spec import DeviceSpec
from ferrule.plan.cost.context import gathered_bytes, partial_bytes, shares_out
from ferrule.plan.cost.exchange import Exchange
from ferrule.plan.cost.experts import Sent, busiest_share, remote_rows
from ferrule.plan.cost.memory import vocabulary_of
from ferrule.plan.plan import Stage
from ferrule.plan.question import Question
from ferrule.plan.remembered import remembered
from ferrule.plan.runtime import Runtime

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Pass:
    """``tokens`` new ones of each of ``sequences``, after ``past`` others. ``logits``: of how many tokens."""

    tokens: int
    past: int
    sequences: int = 1

    @property
    def rows(self) -> int:
        return self.tokens * self.sequences


@dataclass(frozen=True)
class Seconds:
    """Of one device for some layers, by what takes them, and ``collective`` for all devices of the stage."""

    weights: float = 0.0
    cache: float = 0.0
    compute: float = 0.0
    launch: float = 0.0
    collective: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(
            self.weights + other.weights,
            self.cache + other.cache,
            self.compute + other.compute,
            self.launch + other.launch,
            self.collective + other.collective,
        )

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.compute + self.launch + self.collective


Loads = dict[tuple[int, Pass], dict[tuple[Share, float, bool, float, float], "_Load"]]
"""By layer (its identity) and pass; by share, experts needed of it, whether whole experts are given out, bits, and the
part of the tokens whose keys and values are there."""
_Own = tuple[float, float, float, float]
"""Seconds of one device without waiting for others: the first four of `Seconds`."""


class _Pace(NamedTuple):
    """Of a device: bytes of weights, bytes of caches and operations per second, seconds per operation and expert, bits
    that a routed parameter takes at least."""

    bandwidth: float
    attending: float
    rate: float
    launch_seconds: float
    expert_seconds: float
    expert_bits: float

    @classmethod
    def of(cls, device: DeviceSpec, dtype: str, runtime: Runtime) -> _Pace:
        kernels, rate, reading = runtime.kernels_of(device), device.flops_of(dtype), device.memory_bandwidth
        if not device.measured:
            rate, reading = rate * kernels.arithmetic, reading * kernels.reading
        of_experts = runtime.launch_seconds(device), kernels.expert_seconds, kernels.expert_bits
        return cls(reading, reading * kernels.attending, rate, *of_experts)


class _Load(NamedTuple):
    """Load of a device with some share of a layer in a pass: bytes of weights and cache, operations of arithmetic,
    operations that are started, routed experts that are read."""

    weights: float
    cache: float
    flops: float
    launches: float
    experts: float = 0.0


class StageCost:
    """Costs of ``stage``'s devices, whichever layers they have. ``exchange``: between all devices of the plan.
    ``others``: there are more stages, which wait meanwhile. ``loads``: for stages of the same model and runtime to
    share, as searches ask for the same thousands of times."""

    def __init__(
        self,
        question: Question,
        stage: Stage,
        exchange: Exchange,
        *,
        others: bool = False,
        loads: Loads | None = None,
    ) -> None:
        self._loads: Loads = {} if loads is None else loads
        self._model, self._runtime, self._exchange = question.held, question.engine, exchange
        self._cache = question.engine.cache_of(question.model)
        self._stage, cluster = stage, question.cluster
        dtype = _DTYPES.get(self._model.stored, "bf16")
        self._devices = [_Pace.of(cluster.by_name[name], dtype, self._runtime) for name in stage.devices]
        self._turns = cluster.turns(stage.width, others=others)

    def layers(self, which: Pass) -> list[Seconds]:
        """By layer of the whole model."""
        found = {id(layer): self._layer(layer, which) for layer in {id(one): one for one in self._model.alike}.values()}
        return [found[id(layer)] for layer in self._model.alike]

    def _layer(self, layer: LayerSpec, which: Pass) -> Seconds:
        known = self._loads.setdefault((id(layer), which), {})
        parts = []
        for device, share, experts in zip(
            self._devices, self._stage.shares, self._experts_touched(layer, self._rows(which)), strict=True
        ):
            key = (share, experts, self._stage.experts, device.expert_bits, self._stage.cache_part)
            load = known.get(key)
            if load is None:
                load = known[key] = self._load(layer, which, share, experts, device.expert_bits)
            parts.append(self._roofline(device, load))
        return Seconds(*max(parts, key=sum), self._exchanging(layer, which))

    def _rows(self, which: Pass) -> int:
        """Tokens that a device computes."""
        return -(-which.rows // self._context) if shares_out(which.rows, self._context) else which.rows

    @property
    def _context(self) -> int:
        return self._stage.width if self._stage.context else 1

    def _load(self, layer: LayerSpec, which: Pass, share: Share, experts: float, expert_bits: float) -> _Load:
        seen, flops = which.past + which.tokens, layer.flops(which.tokens, which.past) * which.sequences
        if which.tokens == 1 and layer.attention is not None:
            flops += layer.attention.absorbed_flops(which.past) * which.sequences
        kept = share.query if self._runtime.cuts_states else 1.0
        states = 2 * layer.state_bytes(self._cache) * (1 - kept)
        return _Load(
            self._read_bytes(layer, share, experts, expert_bits),
            which.sequences * (layer.cache_read_bytes(seen, self._cache, share) * self._stage.cache_part - states),
            flops * self._part_of_arithmetic(layer, share, experts, which.rows) * self._rows(which) / which.rows
            + layer.recurrence_flops(which.tokens) * which.sequences * kept
            + self._padding(layer, share, experts, which),
            self._runtime.operations(layer, experts, which.tokens),
            experts,
        )

    def _padding(self, layer: LayerSpec, share: Share, experts: float, which: Pass) -> float:
        """Operations on rows of tiles that are empty."""
        if layer.experts is None or which.tokens == 1:
            return 0.0
        part = 1.0 if self._stage.experts else share.experts
        each = layer.weights.routed.parameters / layer.experts.count * part
        return 2 * each * experts * self._runtime.tile / 2

    def _experts_touched(self, layer: LayerSpec, rows: int) -> list[float]:
        """By device, of the experts (or slices of them) that it has."""
        if layer.experts is None:
            return [0.0] * len(self._devices)
        if not self._stage.experts:
            return [layer.experts.touched(rows)] * len(self._devices)
        counts = self._expert_counts(layer)
        busiest = busiest_share(counts, layer.experts.per_token, rows)
        return [busiest * count / max(counts) for count in counts]

    def _read_bytes(self, layer: LayerSpec, share: Share, experts: float, expert_bits: float) -> float:
        held = layer.held_bytes(share)
        if layer.experts is None:
            return held
        routed = layer.weights.routed.held(share.experts)
        count = layer.experts.count * (share.experts if self._stage.experts else 1.0)
        unpacked = max(routed, layer.weights.routed.parameters * share.experts * expert_bits / 8)
        return held - routed + unpacked * experts / count

    def _part_of_arithmetic(self, layer: LayerSpec, share: Share, experts: float, rows: int) -> float:
        """Of a layer's operations, how many are done by a device with ``share`` of it."""
        if layer.experts is None or not self._stage.experts:
            return layer.held_bytes(share) / layer.bytes if layer.bytes else 1.0
        routed = layer.weights.routed.parameters * layer.experts.per_token / layer.experts.count
        active = max(1, layer.active_parameters)
        busy = experts / max(1e-9, layer.experts.touched(rows))
        return ((active - routed) * share.query + routed * busy) / active

    def _roofline(self, device: _Pace, load: _Load) -> _Own:
        """The slower of moving the bytes and doing the arithmetic (Williams, Waterman, Patterson 2009), or both."""
        reading = load.weights / device.bandwidth * self._turns
        attending = load.cache / device.attending * self._turns
        computing = load.flops / device.rate * self._turns
        starting = load.launches * device.launch_seconds + load.experts * device.expert_seconds
        launching = starting * self._turns
        if self._runtime.adds_up:
            return reading, attending, computing, launching
        if computing > reading + attending:
            return 0.0, 0.0, computing, launching
        return reading, attending, 0.0, launching

    def _exchanging(self, layer: LayerSpec, which: Pass) -> float:
        """Seconds of a layer's messages."""
        if self._stage.exchange:
            return self._sent(layer, which.rows)
        if not self._stage.context or layer.attention is None:
            return self._collectives(self._exchanged(layer), which.rows)
        # All that ranks get of each other, as a gathered array has it with their own part.
        merged = partial_bytes(layer.attention, self._model.activation_bytes) * self._rows(which) * self._context
        sizes = [merged]
        if shares_out(which.rows, self._context):
            sizes.append(gathered_bytes(layer.attention, self._model.activation_bytes) * which.rows)
        gather, names = self._exchange.collective, self._stage.devices
        return sum(gather(names, "all_gather", size) + self._runtime.collective_seconds for size in sizes)

    def _exchanged(self, layer: LayerSpec) -> tuple[Collective, ...]:
        if self._stage.width == 1:
            return ()
        if self._whole_attention:  # and dense layers on every device
            return layer.collectives[-1:] if layer.experts else ()
        if self._runtime.sums is None:
            return layer.collectives
        return tuple(each for each in layer.collectives if each.kind == "all_reduce")[: self._runtime.sums]

    def _sent(self, layer: LayerSpec, rows: int) -> float:
        """Seconds of a layer's messages where tokens are sent to their experts. What joins the rows behind a stage's
        last layer is counted as if before its first, which needs none."""
        sent, remote = Sent(self._stage.width, self._model.hidden_size, self._model.activation_bytes, rows), 0.0
        counts = self._expert_counts(layer)
        if layer.experts is not None:
            remote = remote_rows(counts, layer.experts.per_token, rows)
        messages = sent.layer(layer.experts, remote, alone=self._whole_attention)
        names, more = self._stage.devices, self._runtime.collective_seconds
        return sum(self._exchange.collective(names, "all_to_all", size) + more for size in messages)

    def _expert_counts(self, layer: LayerSpec) -> list[int]:
        """By device, of whole ones."""
        count = 0 if layer.experts is None else layer.experts.count
        return [round(share.experts * count) for share in self._stage.shares]

    @property
    def _whole_attention(self) -> bool:
        return self._stage.experts and all(share.query == 1.0 for share in self._stage.shares)

    def _collectives(self, collectives: Sequence[Collective], rows: int) -> float:
        size = rows * self._model.activation_bytes
        names = self._stage.devices
        return sum(
            self._exchange.collective(names, one.kind, one.width * size) + self._runtime.collective_seconds
            for one in collectives
        )

    @remembered
    def first(self, which: Pass) -> Seconds:
        """Time of what precedes the first layer: rows of the embedding."""
        collectives = self._model.first_collectives if self._vocabulary_cut else ()
        read = which.rows * self._model.embedding_row_bytes
        slowest = max((self._roofline(device, _Load(read, 0, 0, 1)) for device in self._devices), key=sum)
        return Seconds(*slowest, self._collectives(collectives, which.rows))

    @remembered
    def last(self, which: Pass) -> Seconds:
        """Time of what follows the last: norm, output matrix for one token of each sequence, the choice of a token."""
        operations, loads = self._runtime.end_of(self._model), []
        for share in self._stage.shares:
            part = vocabulary_of(self._model, self._stage, share)
            head = self._model.head.held(part) + self._model.final.bytes
            flops = 2 * which.sequences * (self._model.head.parameters * part + self._model.final.parameters)
            loads.append(_Load(head, 0, flops, operations))
        slowest = max(map(self._roofline, self._devices, loads), key=sum)
        collectives = self._model.last_collectives if self._vocabulary_cut else ()
        return Seconds(*slowest, self._collectives(collectives, which.sequences))

    @property
    def _vocabulary_cut(self) -> bool:
        return self._stage.width > 1 and any(share.width < 1.0 for share in self._stage.shares)

"""Operations of a step program as a description: what is done, to which registers, with which weights of the model.

Registers hold float32 numbers, a row for each token of the batch, and are known by names. Weights are named as the
model's parameters are. Pure: nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple


class View(NamedTuple):
    """A run of numbers in each row of a register, from ``offset`` on."""

    register: str
    offset: int = 0


@dataclass(frozen=True)
class Operation:
    """Base of all operations: how they are printed."""

    def __str__(self) -> str:
        told = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                shown = f"{value.register}+{value.offset}" if isinstance(value, View) and value.offset else value
                told.append(f"{each.name}={value.register if isinstance(shown, View) else shown}")
        return f"{type(self).__name__.lower():8} {' '.join(told)}"


@dataclass(frozen=True)
class Embed(Operation):
    """Rows of ``table`` by token, from token ``first`` on; the sum over ranks, where ``shared``."""

    table: str
    to: str
    first: int = 0
    factor: float = 1.0
    shared: bool = False


@dataclass(frozen=True)
class Norm(Operation):
    """``count`` runs of ``width`` numbers, each divided by its root mean square (``mean``: less its mean before), times
    ``weight`` plus ``added``, plus ``bias``."""

    source: View
    to: View
    width: int
    eps: float
    weight: str = ""
    bias: str = ""
    count: int = 1
    added: float = 0.0
    mean: bool = False


@dataclass(frozen=True)
class Product(Operation):
    """``matrices`` times ``source``: the results side by side, each filled up to a multiple of 16 numbers."""

    source: View
    to: str
    matrices: tuple[str, ...]
    biases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adapt(Operation):
    """What LoRA adapters of the layer ``module`` add to its product by ``source``, which is in ``to``."""

    source: View
    to: View
    module: str


@dataclass(frozen=True)
class HeadProduct(Operation):
    """``heads`` runs of numbers of ``source``, ``source_stride`` apart, each times the ``part`` of its head of
    ``weight`` (`HeadParts`); behind each result come the ``kept`` numbers that follow in ``source``. Results are
    ``to_stride`` apart."""

    source: View
    to: str
    weight: str
    part: Literal["key", "value"]
    heads: int
    source_stride: int
    to_stride: int
    kept: int = 0


@dataclass(frozen=True)
class Rotate(Operation):
    """Rotary positions: ``count`` heads of ``width``, turned by the angles of ``table``."""

    heads: View
    count: int
    width: int
    table: str
    interleaved: bool = False


@dataclass(frozen=True)
class Attend(Operation):
    """Store keys and values of layer ``layer``, and attend to all that the queries see."""

    query: View
    key: View
    value: View
    to: str
    layer: int
    heads: int
    scale: float
    softcap: float = 0.0
    window: int = 0
    sinks: str = ""


@dataclass(frozen=True)
class Gate(Operation):
    """``activation(gate) * up``; without ``up``, the activation alone."""

    gate: View
    up: View | None
    to: str
    width: int
    activation: str


@dataclass(frozen=True)
class Reduce(Operation):
    """The sum over ranks of ``source`` (``shared``: each has a part), plus ``bias``; added to ``to`` times ``factor``,
    or put there."""

    source: str
    to: str
    add: bool = True
    shared: bool = False
    factor: float = 1.0
    bias: str = ""


@dataclass(frozen=True)
class ReduceScatter(Operation):
    """The sum over ranks of ``register``, of which each rank gets the rows that are its own, and goes on with these."""

    register: str


@dataclass(frozen=True)
class AllGather(Operation):
    """``register`` of all ranks' own rows, with which every rank goes on. ``exact``: they travel as float32."""

    register: str
    exact: bool = False


@dataclass(frozen=True)
class Scale(Operation):
    """``register`` times ``factor``, then bounded by ``softcap``."""

    register: str
    factor: float = 1.0
    softcap: float = 0.0


@dataclass(frozen=True)
class Select(Operation):
    """Only the rows whose logits are wanted go on."""

    source: str
    to: str


@dataclass(frozen=True)
class Gather(Operation):
    """The ranks' parts of each row, ``widths`` numbers long, joined on the driver."""

    source: str
    to: str
    widths: tuple[int, ...]


SHARINGS = ("masked", "combined", "dispatched")
"""How tokens come to the ranks that have their experts: all of them are everywhere, and results are summed over ranks;
all are everywhere, and each result goes to the rank whose row it is; or each rank has rows of its own, which are sent
to the ranks of their experts, and the results back. In the order of the native library's numbers."""


@dataclass(frozen=True)
class Experts(Operation):
    """The experts that the router's ``logits`` choose, summed by weight: this rank's part. ``first``, ``held``: which
    experts it has. ``sharing``: of `SHARINGS`, how tokens come to them; but for the first, ``bounds`` says of each rank
    which is its first one (and, behind the last, how many there are), and the rank goes on with the rows that are its
    own, whose sums are whole. ``groups``: only experts of the ``chosen_groups`` best can be chosen, by the sum of the
    ``group_best`` best of each. ``interleaved``: rows of gate and up alternate."""

    x: View
    logits: str
    to: str
    total: int
    chosen: int
    scoring: str
    first: int
    held: int
    inner: int
    activation: str
    gate_up: str
    down: str
    gate_up_bias: str = ""
    down_bias: str = ""
    normalize: bool = False
    factor: float = 1.0
    choice_bias: str = ""
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 2
    transposed: bool = False
    interleaved: bool = False
    sharing: str = "masked"
    bounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class CacheLayer:
    """Cache of one layer, per token: ``heads`` keys of ``width`` numbers and as many values of ``value_width``."""

    heads: int
    width: int
    value_width: int


class HeadParts(NamedTuple):
    """Parts of latent attention's last projection by head: of each head its ``key`` rows, transposed, by which queries
    are brought among the latents, and its ``value`` rows, by which results come back."""

    key: int
    value: int


@dataclass(frozen=True)
class Description:
    """A step program. ``registers``: their widths by name; the first takes what the stage before sent (or, of
    a layer for multi-token prediction, the hidden states before its tokens). ``rotary``: the
    buffer of frequencies, and the factor of its sines and cosines, by the table's name. ``layers``: of the cache.
    ``depths``: how many operations the first layers take, one number for each layer. ``result``: the register of hidden
    states or logits. ``normed``: how many operations it takes, on the last stage, to have the hidden states of the rows
    wanted in register "last", after the last norm."""

    operations: tuple[Operation, ...]
    registers: dict[str, int]
    rotary: dict[str, tuple[str, float]]
    layers: tuple[CacheLayer, ...]
    depths: tuple[int, ...]
    result: str
    normed: int = 0
    matrices: frozenset[str] = field(default_factory=frozenset)
    """Names of weights that are held packed."""
    by_head: dict[str, HeadParts] = field(default_factory=dict)
    """Those of them that are held as two matrices for each head."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Of each layer its first operation, and the first behind it."""
        first = sum(isinstance(each, Embed) for each in self.operations[:1])
        return list(zip((first, *self.depths), self.depths, strict=False))

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self.operations)


def head_part(name: str, part: str, head: int) -> str:
    """Under which name a head's part of weight ``name`` is among `load.Weights.matrices`."""
    return f"{name}[{head}].{part}"

"""The step of a planned rank in words: its operations, with the layers that do the same taken together.

Of a model's configuration alone: nothing is loaded, and no weights need be there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, NamedTuple, cast

import torch

from ferrule.engine.architectures import encodes
from ferrule.engine.rank.model import cut_out, empty, tied
from ferrule.engine.rank.step.describe import Unfit, describe
from ferrule.engine.rank.step.operations import (
    AllGather,
    Attend,
    Description,
    Embed,
    Experts,
    Gate,
    Gather,
    HeadProduct,
    Norm,
    Operation,
    Product,
    Reduce,
    ReduceScatter,
    Rotate,
    Scale,
    Select,
    View,
)
from ferrule.fabric import Group
from ferrule.plan import Shard

_LAYER = re.compile(r"\.layers\.(\d+)\.")


class _Place(NamedTuple):
    """Stand-in of a group, as far as cutting a model asks it."""

    rank: int
    size: int


@dataclass(frozen=True)
class Line:
    """One operation. ``source``, ``to``: registers. ``numbers``: of weights, that it reads for one token.
    ``collectives``: that all ranks of the stage do together."""

    operation: str
    source: str
    to: str
    what: str
    numbers: int = 0
    collectives: int = 0


@dataclass(frozen=True)
class Part:
    """Operations outside layers, or those of each of ``layers``, which do the same."""

    layers: tuple[int, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class StepText:
    """The step of one rank. ``unfit``: why it has no program and runs through transformers' modules, or None."""

    shard: Shard
    parts: tuple[Part, ...]
    unfit: str | None = None

    @property
    def operations(self) -> int:
        return self._sum(lambda line: 1)

    @property
    def numbers(self) -> int:
        """Of weights that the rank reads for one token."""
        return self._sum(lambda line: line.numbers)

    @property
    def collectives(self) -> int:
        return self._sum(lambda line: line.collectives)

    def _sum(self, of: Callable[[Line], int]) -> int:
        return sum(of(line) * max(1, len(part.layers)) for part in self.parts for line in part.lines)


def explain_step(config: Any, shard: Shard) -> StepText:
    """``config``: transformers' (`ferrule.engine.source`). Raises `PlanError` or `ModelError` where the model cannot be
    run or cut so."""
    if encodes(config):
        return StepText(shard, (), "encoders have no step program: they run through transformers' modules")
    model = empty(config, torch.bfloat16)
    aliases = tied(model, {})
    group = cast(Group, _Place(shard.part, shard.parts))  # which no layer asks for anything while nothing is computed
    part = cut_out(model, config.get_text_config(), shard, group, aliases)
    try:
        description = describe(model, part.base, shard, shard.parts)
    except Unfit as unfit:
        return StepText(shard, (), str(unfit))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters(remove_duplicate=False)}
    return StepText(shard, _parts(description, shard, shapes))


def _parts(description: Description, shard: Shard, shapes: dict[str, tuple[int, ...]]) -> tuple[Part, ...]:
    operations, spans = description.operations, description.spans
    parts = [Part((), tuple(_line(each, shapes) for each in operations[: spans[0][0]]))]
    kinds: dict[tuple[Operation, ...], list[int]] = {}
    lines: dict[tuple[Operation, ...], tuple[Line, ...]] = {}
    for layer, (first, last) in enumerate(spans, shard.first_layer):
        own = tuple(operations[first:last])
        kind = tuple(_anywhere(each) for each in own)
        kinds.setdefault(kind, []).append(layer)
        lines.setdefault(kind, tuple(_line(each, shapes) for each in own))
    parts += [Part(tuple(layers), lines[kind]) for kind, layers in kinds.items()]
    parts.append(Part((), tuple(_line(each, shapes) for each in operations[spans[-1][1] :])))
    return tuple(part for part in parts if part.lines)


def _anywhere(operation: Operation) -> Operation:
    """``operation`` without what tells its layer."""
    changed: dict[str, Any] = {}
    for name, value in vars(operation).items():
        if isinstance(value, str):
            changed[name] = _LAYER.sub(".layers.*.", value)
        elif isinstance(value, tuple) and not isinstance(value, View):
            changed[name] = tuple(_LAYER.sub(".layers.*.", each) if isinstance(each, str) else each for each in value)
    if isinstance(operation, Attend):
        changed["layer"] = 0
    return replace(operation, **changed)


def _short(name: str) -> str:
    """The last names of a weight that tell it from others of its layer."""
    own = _LAYER.split(name)[-1].removesuffix(".weight").removesuffix(".table")
    return own.rpartition(".")[2] if own.count(".") else own


def _size(shape: Sequence[int]) -> str:
    return " × ".join(str(each) for each in shape)


def _view(view: View) -> str:
    return f"{view.register}+{view.offset}" if view.offset else view.register


def _times(factor: float) -> str:
    return "" if factor == 1 else f", × {factor:g}"


_SHARED = {
    "masked": "",
    "combined": "; results go to the ranks of their tokens",
    "dispatched": "; tokens are sent to their experts' ranks, and results back",
}
_MESSAGES = {"masked": 0, "combined": 1, "dispatched": 3}  # the last: choices, rows, results
Shapes = dict[str, tuple[int, ...]]


@singledispatch
def _line(operation: Operation, shapes: Shapes) -> Line:
    raise TypeError(operation)


@_line.register
def _(one: Embed, shapes: Shapes) -> Line:
    shape = shapes[one.table]
    where = ", summed over ranks" if one.shared else ""
    what = f"{_short(one.table)} {_size(shape)}{where}{_times(one.factor)}"
    return Line("embed", "tokens", one.to, what, shape[1], one.shared)


@_line.register
def _(one: Norm, shapes: Shapes) -> Line:
    heads = f" of each of {one.count} heads" if one.count > 1 else ""
    kind = "less its mean, " if one.mean else ""
    what = f"{_short(one.weight)}: {kind}{one.width} numbers{heads}"
    return Line("norm", _view(one.source), _view(one.to), what, one.width)


@_line.register
def _(one: Product, shapes: Shapes) -> Line:
    sizes = [shapes[each] for each in one.matrices]
    what = ", ".join(f"{_short(name)} {_size(size)}" for name, size in zip(one.matrices, sizes, strict=True))
    biased = " + bias" if any(one.biases) else ""
    return Line("product", _view(one.source), one.to, what + biased, sum(math.prod(size) for size in sizes))


@_line.register
def _(one: HeadProduct, shapes: Shapes) -> Line:
    columns = shapes[one.weight][1]
    between = "queries to latents" if one.part == "key" else "latents to values"
    width = one.source_stride - one.kept if one.part == "key" else one.to_stride
    what = f"{_short(one.weight)}: {between}, {one.heads} heads of {width}"
    return Line("heads", _view(one.source), one.to, what, one.heads * width * columns)


@_line.register
def _(one: Rotate, shapes: Shapes) -> Line:
    view = _view(one.heads)
    return Line("rotate", view, view, f"{one.count} head{'s' * (one.count > 1)} of {one.width} by their positions")


@_line.register
def _(one: Attend, shapes: Shapes) -> Line:
    what = f"{one.heads} heads over the cache"
    what += f", window of {one.window}" if one.window else ""
    what += f", logits bounded by {one.softcap:g}" if one.softcap else ""
    what += ", with sinks" if one.sinks else ""
    return Line("attend", one.query.register, one.to, what)


@_line.register
def _(one: Gate, shapes: Shapes) -> Line:
    return Line(
        "gate", one.gate.register, one.to, f"{one.activation}(gate){' × up' if one.up else ''}, {one.width} numbers"
    )


@_line.register
def _(one: Reduce, shapes: Shapes) -> Line:
    what = ["the sum over ranks"] if one.shared else []
    what += ["+ bias"] if one.bias else []
    what += [f"× {one.factor:g}"] if one.factor != 1 else []
    summed = [" ".join(what)] if what else []
    return Line("reduce", one.source, one.to, ", ".join([*summed, *(["added"] if one.add else [])]), 0, one.shared)


@_line.register
def _(one: ReduceScatter, shapes: Shapes) -> Line:
    return Line("scatter", one.register, one.register, "the sum over ranks, of this rank's tokens", 0, True)


@_line.register
def _(one: AllGather, shapes: Shapes) -> Line:
    what = f"all ranks' tokens{', in float32' if one.exact else ''}"
    return Line("gather", one.register, one.register, what, 0, True)


@_line.register
def _(one: Scale, shapes: Shapes) -> Line:
    bound = f", bounded by {one.softcap:g}" if one.softcap else ""
    return Line("scale", one.register, one.register, f"× {one.factor:g}{bound}")


@_line.register
def _(one: Select, shapes: Shapes) -> Line:
    return Line("select", one.source, one.to, "tokens whose logits are wanted")


@_line.register
def _(one: Gather, shapes: Shapes) -> Line:
    parts = len(one.widths) > 1
    joined = ", joined from all ranks on the driver" if parts else ""
    return Line("gather", one.source, one.to, f"{sum(one.widths)} logits{joined}", 0, parts)


@_line.register
def _(one: Experts, shapes: Shapes) -> Line:
    each = sum(rows * columns for _, rows, columns in (shapes[one.gate_up], shapes[one.down]))
    held = "" if one.held == one.total else f", {one.held} of them here"
    what = f"{one.chosen} of {one.total} experts by {one.scoring.replace('_', ' ')}{held}; {one.activation}, "
    what += f"{one.inner} wide{_SHARED[one.sharing]}"
    read = each * min(one.chosen, one.held)
    return Line("experts", one.x.register, one.to, what, read, _MESSAGES[one.sharing])

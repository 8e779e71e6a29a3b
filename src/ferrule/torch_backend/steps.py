"""One call of the fabric for each thing that torch asks for: which arrays it works on, and what remains to do after."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ferrule.errors import FabricError
from ferrule.fabric import Group
from ferrule.torch_backend.reductions import bits, fold_bits, is_bitwise, numbers, operand
from ferrule.torch_backend.tensors import MOVED, Finish, line_of, pack, place_of, source, target, unpacked, widest


class Step(NamedTuple):
    """``call(timeout=…, blocking=…)`` starts an operation of the fabric; ``finish`` brings its result home."""

    call: Callable[..., Any]
    finish: Finish | None = None


def all_reduce(group: Group, t: Tensor, op: Any) -> Step:
    if is_bitwise(op):
        return _gather_bits(group, t, op)
    x = operand(t, op)
    call = partial(group.all_reduce, x.values, x.name)
    return Step(call, None if x.shared else lambda: numbers(t).copy_(x.values))


def reduce(group: Group, t: Tensor, root: int, op: Any) -> Step:
    if is_bitwise(op):
        step = _gather_bits(group, t, op)
        return step if group.rank == root else Step(step.call)
    x = operand(t, op)
    call = partial(group.reduce, x.values, root, x.name)
    if x.shared or group.rank != root:
        return Step(call)
    return Step(call, lambda: numbers(t).copy_(x.values))


def _gather_bits(group: Group, t: Tensor, op: Any) -> Step:
    """Every rank takes all and combines them itself: these are small masks, and every rank gets the same."""
    x = bits(t)
    parts = x.new_empty(group.size * x.numel())
    call = partial(group.all_gather, x, parts)
    return Step(call, lambda: t.detach().copy_(fold_bits(op, parts.view(group.size, *t.shape))))


def reduce_scatter(group: Group, out: Tensor, t: Tensor, op: Any) -> Step:
    if t.numel() != group.size * out.numel():
        raise ValueError(f"the input has {t.numel()} elements; it needs {group.size} times the output's {out.numel()}")
    x = operand(t, op)
    # In one line the first axis divides, whatever the shapes are.
    values = x.values if t.ndim and t.shape[0] % group.size == 0 else x.values.detach().view(-1)
    if place_of(out) is not None and out.dtype == values.dtype:
        return Step(partial(group.reduce_scatter, values, x.name, out))
    home = numbers(out)
    part = values.new_empty(home.shape)
    return Step(partial(group.reduce_scatter, values, x.name, part), lambda: home.copy_(part))


def reduce_scatter_list(group: Group, out: Tensor, parts: Sequence[Tensor], op: Any) -> Step:
    """``parts[r]`` goes to rank r; they may differ in size from rank to rank."""
    _check_count(group, parts)
    width = widest(parts)
    if out.numel() == width and out.is_contiguous():
        return reduce_scatter(group, out.detach().view(-1), pack(parts, width), op)
    padded = out.new_empty(width)
    step = reduce_scatter(group, padded, pack(parts, width), op)

    def finish() -> None:
        if step.finish is not None:
            step.finish()
        out.detach().copy_(padded[: out.numel()].view(out.shape))

    return Step(step.call, finish)


def broadcast(group: Group, t: Tensor, root: int) -> Step:
    line, finish = target(t, read=True)
    return Step(partial(group.broadcast, line, root), None if group.rank == root else finish)


def all_gather(group: Group, out: Tensor, t: Tensor) -> Step:
    line, finish = target(out)
    return Step(partial(group.all_gather, source(t), line), finish)


def all_gather_list(group: Group, outs: Sequence[Tensor], t: Tensor) -> Step:
    """``outs[r]`` gets rank r's tensor; they may differ in size from rank to rank, but not between ranks."""
    _check_count(group, outs)
    width = widest(outs)
    line, finish = unpacked(outs, width)
    step = all_gather(group, line, t if t.numel() == width else pack([t], width))
    return Step(step.call, finish)


def gather(group: Group, outs: Sequence[Tensor], t: Tensor, root: int) -> Step:
    if group.rank != root:
        return Step(partial(group.gather, source(t), root))
    _check_count(group, outs)
    line, finish = unpacked(outs, t.numel())
    return Step(partial(group.gather, source(t), root, target(line)[0]), finish)


def scatter(group: Group, out: Tensor, parts: Sequence[Tensor], root: int) -> Step:
    line, finish = target(out)
    if group.rank != root:
        return Step(partial(group.scatter, None, root, line), finish)
    _check_count(group, parts)
    return Step(partial(group.scatter, source(pack(parts, out.numel())), root, line), finish)


def all_to_all(
    group: Group, out: Tensor, t: Tensor, out_counts: Sequence[int] | None, counts: Sequence[int] | None
) -> Step:
    """Counts are along the first axis, one per rank; none means equal shares."""
    if not counts and not out_counts and place_of(t) is not None and place_of(out) is not None:
        return Step(partial(group.all_to_all, t, out))
    line, finish = target(out)
    sends, receives = _shares(group, t, counts), _shares(group, out, out_counts)
    call = partial(group.all_to_all, line_of(source(t)), line_of(line), send_counts=sends, recv_counts=receives)
    return Step(call, finish)


def all_to_all_list(group: Group, outs: Sequence[Tensor], parts: Sequence[Tensor]) -> Step:
    _check_count(group, outs)
    _check_count(group, parts)
    out = outs[0].new_empty(sum(part.numel() for part in outs))
    x = torch.cat([part.detach().reshape(-1) for part in parts])
    step = all_to_all(group, out, x, [part.numel() for part in outs], [part.numel() for part in parts])

    def finish() -> None:
        for part, piece in zip(outs, torch.split(out, [part.numel() for part in outs]), strict=True):
            part.detach().copy_(piece.view(part.shape))

    return Step(step.call, finish)


def send(group: Group, t: Tensor, dst: int, tag: int) -> list[Step]:
    steps = [Step(partial(group.send, source(t), dst))]
    if tag:
        steps.insert(0, Step(partial(group.send, torch.tensor([tag]), dst)))
    return steps


def recv(group: Group, t: Tensor, src: int | None, tag: int = 0) -> list[Step]:
    """Messages of a pair arrive in the order they were sent; a tag other than 0 is compared, not searched for.

    ``src=None``, without a tag: from whichever rank a message comes first.
    """
    line, finish = target(t)
    steps = [Step(partial(group.recv, line, src), finish)]
    if tag:
        theirs = torch.zeros(1, dtype=torch.int64)

        def compare() -> None:
            if int(theirs) != tag:
                raise FabricError(
                    f"rank {group.rank} waits for tag {tag} from rank {src}, which sent tag {int(theirs)} first; "
                    "messages of a pair keep their order here, so receive them in the order they are sent"
                )

        steps.insert(0, Step(partial(group.recv, theirs, src), compare))
    return steps


def _shares(group: Group, t: Tensor, counts: Sequence[int] | None) -> list[int]:
    """Counts along the first axis of ``t`` as counts of what its elements are moved as."""
    rows = t.shape[0] if t.ndim else 1
    if not counts:
        if rows % group.size:
            raise ValueError(f"the first axis of shape {tuple(t.shape)} does not divide into {group.size} equal parts")
        counts = [rows // group.size] * group.size
    if len(counts) != group.size or sum(counts) != rows:
        raise ValueError(
            f"{list(counts)} does not divide the first axis of shape {tuple(t.shape)} by {group.size} ranks"
        )
    row = math.prod(t.shape[1:]) * (1 if t.dtype in MOVED else t.element_size())
    return [count * row for count in counts]


def _check_count(group: Group, tensors: Sequence[Tensor]) -> None:
    if len(tensors) != group.size:
        raise ValueError(f"{len(tensors)} tensors were given; a group of {group.size} needs one per rank")

"""Every operation of a group on numbers with which results are exact, whatever the order of the ranks.

Each call checks its result against numpy and raises `WrongResult`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ferrule.fabric import Group

Array = np.ndarray[Any, Any]
Op = Literal["sum", "prod", "min", "max"]
Call = Callable[[Group, list[Array], int, Op], None]

DTYPES = (
    "float64", "float32", "float16", "int8", "uint8", "int32", "int64", "bool", "int16", "uint16", "uint32", "uint64",
)  # fmt: skip
OPS: dict[Op, Any] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


class WrongResult(Exception):
    """An operation gave something else than numpy."""


def exact_inputs(seed: int, dtype: str, size: int, ranks: int) -> list[Array]:
    """One array per rank, of whole numbers so small that no sum or product of a few ranks is rounded."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 4, size).astype(dtype) for _ in range(ranks)]


def _expect(what: str, got: Array, wanted: Array) -> None:
    if got.tobytes() != wanted.tobytes():
        raise WrongResult(f"{what} of {wanted.size} {wanted.dtype}: {got[:4]} instead of {wanted[:4]}")


def _reduced(inputs: list[Array], op: Op) -> Array:
    total = inputs[0]
    for part in inputs[1:]:
        total = OPS[op](total, part)
    return total


def all_reduce(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    x = inputs[group.rank].copy()
    group.all_reduce(x, op)
    _expect(f"all_reduce {op}", x, _reduced(inputs, op))


def all_reduce_later(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    x, y = inputs[group.rank].copy(), inputs[root].copy()
    works = [group.all_reduce(x, op, blocking=False), group.broadcast(y, root, blocking=False)]
    for work in works:
        work.wait()
    _expect(f"all_reduce {op}", x, _reduced(inputs, op))
    _expect("broadcast", y, inputs[root])


def all_gather(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    _expect("all_gather", group.all_gather(inputs[group.rank]), np.concatenate(inputs))


def reduce_scatter(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    blocks = [np.tile(part, (group.size, 1)) for part in inputs]
    _expect(f"reduce_scatter {op}", group.reduce_scatter(blocks[group.rank], op)[0], _reduced(inputs, op))


def broadcast(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    x = inputs[group.rank].copy()
    group.broadcast(x, root)
    _expect("broadcast", x, inputs[root])


def reduce(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    x = inputs[group.rank].copy()
    group.reduce(x, root, op)
    _expect(f"reduce {op}", x, _reduced(inputs, op) if group.rank == root else inputs[group.rank])


def gather_and_scatter(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    rows = group.gather(inputs[group.rank][None], root)
    if group.rank == root:
        _expect("gather", rows, np.stack(inputs))
    mine = np.empty_like(inputs[group.rank][None])
    group.scatter(rows, root, mine)
    _expect("scatter", mine[0], inputs[group.rank])


def all_to_all(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    mine = np.stack([inputs[group.rank] + other for other in range(group.size)]).astype(inputs[0].dtype)
    wanted = np.stack([part + group.rank for part in inputs]).astype(inputs[0].dtype)
    _expect("all_to_all", group.all_to_all(mine), wanted)


def pass_on(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    """Every rank sends to the next, the root first and the others what they got: once around."""
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    x = inputs[root].copy()
    if group.rank == root:
        group.send(x, after)
    x = np.empty_like(x)
    group.recv(x, before)
    if group.rank != root:
        group.send(x, after)
    _expect("send and recv", x, inputs[root])


def barrier(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    group.barrier()


def all_bfloat16(group: Group, inputs: list[Array], root: int, op: Op) -> None:
    """The same in bfloat16, which numpy lacks; ``inputs`` are float32."""
    import torch

    parts = [torch.from_numpy(part).bfloat16() for part in inputs]
    wanted = torch.from_numpy(_reduced(inputs, op)).bfloat16()
    mine = parts[group.rank]
    results = {
        f"all_reduce {op}": (group.all_reduce(mine.clone(), op), wanted),
        "all_gather": (group.all_gather(mine), torch.cat(parts)),
        f"reduce_scatter {op}": (group.reduce_scatter(mine.repeat(group.size, 1), op)[0], wanted),
        "broadcast": (group.broadcast(mine.clone(), root), parts[root]),
        f"reduce {op}": (group.reduce(mine.clone(), root, op), wanted if group.rank == root else mine),
    }
    for what, (got, right) in results.items():
        if not torch.equal(got, right):
            raise WrongResult(f"{what} of {right.numel()} bfloat16: {got[:4]} instead of {right[:4]}")


CALLS: tuple[Call, ...] = (
    all_reduce,
    all_reduce_later,
    all_gather,
    reduce_scatter,
    broadcast,
    reduce,
    gather_and_scatter,
    all_to_all,
    pass_on,
    barrier,
)

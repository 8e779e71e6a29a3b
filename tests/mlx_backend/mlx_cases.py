"""What ranks do under a stock MLX; each case raises where something comes out wrong. ``python mlx_cases.py CASE...``"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from ferrule.errors import FabricError, PeerLost

DTYPES = (
    "bool_", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64",
)  # fmt: skip
SIZES = (1, 7, 4099)
UNSIGNED = {"uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64}


def numbers(name: str, size: int, rank: int) -> Any:
    """Numbers of a rank that every type holds, as numpy has them; for unsigned types as large as they go."""
    some = np.arange(size) * 7 + rank * 3
    if name == "bool_":
        return some % 2 == 0
    if name in UNSIGNED:
        return UNSIGNED[name](np.iinfo(UNSIGNED[name]).max) - (some % 5).astype(UNSIGNED[name])
    if name == "complex64":
        return (some % 3 + 1j * (some % 5 - 2)).astype(np.complex64)
    whole = some % 5 - 2
    return whole.astype(name if name.startswith("int") else np.float64)


def array(name: str, values: Any) -> mx.array:
    return mx.array(values.astype(np.float32) if "float" in name and name != "float64" else values).astype(
        getattr(mx, name)
    )


def same(got: mx.array, wanted: mx.array, what: object) -> None:
    assert got.dtype == wanted.dtype, what
    assert got.shape == wanted.shape, (what, got.shape)
    assert mx.array_equal(got, wanted).item(), (what, got, wanted)


def reductions(world: Any) -> None:
    """Every type by every reduction."""
    rank, size = world.rank(), world.size()
    functions = {"all_sum": np.add, "all_max": np.maximum, "all_min": np.minimum}
    with mx.stream(mx.cpu):
        for name in DTYPES:
            for count in SIZES:
                inputs = [numbers(name, count, each) for each in range(size)]
                for call, combine in functions.items():
                    wanted = inputs[0]
                    with np.errstate(over="ignore"):
                        for one in inputs[1:]:
                            wanted = combine(wanted, one)
                    got = getattr(mx.distributed, call)(array(name, inputs[rank]), group=world)
                    same(got, array(name, wanted), (name, count, call))


def rounding(world: Any) -> None:
    """16-bit floats are summed in 32 bits and rounded once, as by the fabric: MLX's own functions round each time."""
    rank, size = world.rank(), world.size()
    for name in ("float16", "bfloat16"):
        parts = [
            mx.array(np.random.default_rng(each).standard_normal(5000)).astype(getattr(mx, name))
            for each in range(size)
        ]
        wanted = parts[0].astype(mx.float32)
        for part in parts[1:]:
            wanted = wanted + part.astype(mx.float32)
        same(mx.distributed.all_sum(parts[rank], group=world), wanted.astype(getattr(mx, name)), name)
    large = mx.full((3,), 4.25e37 if rank else 1.0, dtype=mx.bfloat16)  # the bits of a NaN of float16
    same(mx.distributed.all_max(large, group=world), mx.full((3,), 4.25e37, dtype=mx.bfloat16), "a large number")
    not_number = mx.full((3,), float("nan") if rank else 1.0, dtype=mx.float16)
    assert mx.all(mx.isnan(mx.distributed.all_max(not_number, group=world))).item()


def gathering(world: Any) -> None:
    rank, size = world.rank(), world.size()
    with mx.stream(mx.cpu):
        for name in DTYPES:
            parts = [array(name, numbers(name, 12, each)).reshape(2, 3, 2) for each in range(size)]
            same(mx.distributed.all_gather(parts[rank], group=world), mx.concatenate(parts), name)
            turned = mx.distributed.all_gather(parts[rank].transpose(2, 0, 1), group=world)  # with gaps
            same(turned, mx.concatenate([part.transpose(2, 0, 1) for part in parts]), name)
    same(mx.distributed.all_gather(mx.array(rank), group=world), mx.arange(size), "scalars")


def splitting(world: Any) -> None:
    rank, size = world.rank(), world.size()
    halves = world.split(rank % 2)
    assert (halves.rank(), halves.size()) == (rank // 2, len(range(rank % 2, size, 2)))
    total = sum(range(rank % 2, size, 2))
    if halves.size() > 1:
        assert mx.distributed.all_sum(mx.array(rank), group=halves).item() == total
        again = halves.split(0, halves.size() - halves.rank())  # the other way round
        assert again.rank() == halves.size() - 1 - halves.rank()
        assert mx.distributed.all_gather(mx.array(rank), group=again).tolist() == list(range(rank % 2, size, 2))[::-1]
    # A group that nobody holds any more when its operation runs; more of them than stay open.
    for turn in range(18):
        x = mx.array([turn, rank])
        assert mx.distributed.all_sum(x, group=world.split(0)).tolist() == [turn * size, sum(range(size))]


def messages(world: Any) -> None:
    """Between every two, in both directions, small and larger than what is buffered."""
    rank, size = world.rank(), world.size()
    for sender in range(size):
        for receiver in range(size):
            for name, count in (("float32", 3), ("bfloat16", 40_000), ("complex64", 200_000)):
                x = array(name, numbers(name, count, sender))
                if sender != receiver and rank == sender:
                    mx.eval(mx.distributed.send(x, receiver, group=world))
                elif sender != receiver and rank == receiver:
                    same(mx.distributed.recv_like(x, sender, group=world), x, (sender, receiver, name))


def graphs(world: Any) -> None:
    """Many operations of one evaluation, compiled, and differentiated."""
    rank, size = world.rank(), world.size()
    x = mx.full((4, 64), 1.0 + rank)
    y = x
    for _ in range(50):
        y = mx.distributed.all_sum(y, group=world) / size
    same(y, mx.full((4, 64), (size + 1) / 2), "a chain")
    doubled = mx.compile(lambda a: mx.distributed.all_sum(a * 2, group=world) + 1)
    same(doubled(x), mx.full((4, 64), size * (size + 1.0) + 1), "compiled")
    same(mx.grad(lambda a: mx.distributed.all_sum(a, group=world).sum())(x), mx.ones((4, 64)), "a gradient")


def streams(world: Any) -> None:
    """A stream receives what the other rank sends only after it has got what another stream sends."""
    rank = world.rank()
    if rank > 1:
        return
    first, second = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    x = mx.arange(5)
    if rank == 0:
        got = mx.distributed.recv_like(x, 1, group=world, stream=first)
        mx.async_eval(got)
        mx.eval(mx.distributed.send(x, 1, group=world, stream=second))
    else:
        mx.eval(mx.distributed.recv_like(x, 0, group=world))
        got = mx.distributed.send(x, 0, group=world)
    same(got, x, "two streams")


def refused(call: Callable[[], object], *words: str) -> None:
    """``call`` raises an error with these words in it."""
    try:
        call()
    except RuntimeError as error:
        said = str(error)
    else:
        raise AssertionError("there was no error")
    for word in words:
        assert word in said, said


def lost(world: Any) -> None:
    """The last rank is killed; the others learn of it in whatever way they wait, and by name."""
    last = world.size() - 1
    x = mx.ones((64,))
    mx.eval(mx.distributed.all_sum(x, group=world))
    if world.rank() == last:
        os.kill(os.getpid(), 9)
    waits: list[Callable[[], object]] = [
        lambda: mx.eval(mx.distributed.all_sum(x, group=world)),
        lambda: mx.distributed.all_sum(x, group=world).tolist(),
        lambda: mx.distributed.recv_like(x, last, group=world).sum().item(),
    ]
    for wait in waits:
        refused(wait, f"rank {last} on ", "the group is closed")
    from ferrule.mlx import world as group_below

    try:
        group_below().check()
    except PeerLost as error:
        lost_rank = error.rank
    assert lost_rank == last


def different(world: Any) -> None:
    """Ranks that call different things are told so, and the group is over."""
    refused(lambda: mx.eval(mx.distributed.all_sum(mx.ones((8 + world.rank(),)), group=world)), "called")
    refused(lambda: mx.eval(mx.distributed.all_sum(mx.ones((8,)), group=world)), "called")


def to_itself(world: Any) -> None:
    refused(lambda: mx.eval(mx.distributed.send(mx.ones((8,)), world.rank(), group=world)), "cannot do send")
    mx.eval(mx.distributed.all_sum(mx.ones((8,)), group=world))


def alone() -> None:
    """Without a launcher there is no group, and no error unless one is asked for."""
    assert mx.distributed.is_available("mpi")
    assert mx.distributed.init().size() == 1
    refused(lambda: mx.distributed.init(strict=True, backend="mpi"), "mpi")


def nobody_comes() -> None:
    """Ranks that do not meet get an error, also where a group of one would do for MLX."""
    refused(lambda: mx.distributed.init(backend="mpi"), "rank 1")


def main(names: list[str]) -> None:
    mx.set_default_device(mx.cpu)
    for name in names:
        if name in ("alone", "nobody_comes"):
            globals()[name]()
            continue
        world = mx.distributed.init(strict=True, backend="mpi")
        assert (world.rank(), world.size()) == tuple(
            int(os.environ[f"FERRULE_{each}"]) for each in ("RANK", "WORLD_SIZE")
        )
        try:
            globals()[name](world)
        except (AssertionError, FabricError, RuntimeError) as error:
            raise SystemExit(f"{name}: {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])

"""The group of ranks that do collectives together."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar, overload

from ferrule._native import OPS, REDUCTIONS, Operation
from ferrule.config import TransportChoice
from ferrule.errors import FabricError
from ferrule.fabric.arrays import locate, new_like
from ferrule.fabric.coalesce import Coalesced
from ferrule.fabric.describe import GroupInfo
from ferrule.fabric.failure import BUSY, NOT_HERE, raise_failure
from ferrule.fabric.join.control_channel import Deadline
from ferrule.fabric.join.membership import Membership, split_group
from ferrule.fabric.join.reform import reform_group
from ferrule.fabric.open_groups import open_groups
from ferrule.fabric.operands import check_out, divided_shape, elements_of_rows, joined_shape, reduction_number
from ferrule.fabric.transports.build import Joined
from ferrule.fabric.work import Work

Reduction = Literal["sum", "prod", "min", "max", "avg"]
Array = TypeVar("Array")


class Group:
    """Ranks ``0 .. size-1`` that move arrays between each other. Made by `ferrule.fabric.init` and `split`.

    Arrays are numpy arrays or torch tensors (or, as inputs with ``out`` given, anything with DLPack) in host memory,
    contiguous; they are used in place, never copied first. Element types: float64, float32, bfloat16, float16,
    int8, uint8, int32, int64, bool. All ranks must call the same collectives in the same order with the same sizes;
    where they do not, the group fails with an error that says what each called. Results are bitwise equal on all
    ranks, and from run to run on the same links (docs/fabric.md, "Algorithms", has the order of summation).

    Every operation takes ``timeout`` in seconds (default: the group's) and ``blocking``: with False it returns a
    `Work` at once and goes on by itself. Collectives run in the order in which they were called; messages (`send`
    and `recv`) wait neither for them nor for messages of other peers or the other direction.

    On any failure (`PeerLost`, `FabricTimeout`, `FabricError`) the whole group is closed on every rank, and every
    later call raises the first cause again. Arrays that an operation was writing then hold nothing useful. `reform`
    makes a new group of the ranks that are left; ``origin`` is the rank that each had in the group before.

    One thread at a time: a second one gets a `FabricError` at once and disturbs nothing. Only `abort` may be
    called from anywhere, to end an operation that waits.
    """

    def __init__(
        self, joined: Joined, membership: Membership, timeout: float, origin: tuple[int, ...] | None = None
    ) -> None:
        self._native = joined.live.native
        self._info = joined.info
        self._membership = membership
        self._timeout = timeout
        self._splits = 0
        self._coalesced: Coalesced | None = None
        self.rank: int = joined.info.rank
        self.size: int = joined.info.size
        self.origin: tuple[int, ...] = tuple(range(self.size)) if origin is None else origin
        membership.mesh.enter(joined.live)
        self._leave = weakref.finalize(self, membership.mesh.leave, joined.live.pending.epoch)
        self._leave.atexit = False  # `open_groups` does it, after all of them have said goodbye
        open_groups.add(self)

    @overload
    def all_reduce(
        self, x: Array, op: Reduction = ..., *, timeout: float | None = ..., blocking: Literal[True] = ...,
        quantized: bool = ...,
    ) -> Array: ...  # fmt: skip

    @overload
    def all_reduce(
        self, x: Array, op: Reduction = ..., *, timeout: float | None = ..., blocking: Literal[False],
        quantized: bool = ...,
    ) -> Work[Array]: ...  # fmt: skip

    def all_reduce(
        self,
        x: Array,
        op: Reduction = "sum",
        *,
        timeout: float | None = None,
        blocking: bool = True,
        quantized: bool = False,
    ) -> Array | Work[Array]:
        """Combine ``x`` of all ranks element by element, in place on every rank. Returns ``x``.

        bool: sum and max are "or", prod and min are "and", avg is refused. Integers wrap around; their avg is
        cut towards zero. ``quantized`` (float32, bfloat16 and float16; sum and avg) sends 8-bit numbers with a scale
        per block: a quarter of the bytes of float32, at the error that docs/fabric.md states; for slow links.
        """
        if blocking and not quantized and self._coalesced is None:
            number = REDUCTIONS.get(op, -1)
            seconds = self._timeout if timeout is None else timeout
            status = self._native.all_reduce_tensor(x, number, seconds)
            if status == NOT_HERE:
                status = self._native.all_reduce(*locate(x, writable=True), number, seconds)
            if status:
                self._fail(status, op)
            return x
        address, count, dtype = locate(x, writable=True)
        operation = Operation(
            OPS["all_reduce"], dtype, reduction_number(op), target=address, count=count, quantized=quantized
        )
        result: Array | Work[Array] = self._run(operation, x, (x,), timeout, blocking, op)
        return result

    def all_gather(self, x: Any, out: Any = None, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """The arrays of all ranks joined along the first axis, in rank order; scalars become shape ``(size,)``.

        ``x`` has the same shape on every rank. ``out`` (optional) is written and returned.
        """
        address, count, dtype = locate(x, writable=False)
        if out is None:
            out = new_like(x, joined_shape(x, self.size))
        target = check_out(out, self.size * count, dtype)
        operation = Operation(OPS["all_gather"], dtype, source=address, target=target, count=count)
        return self._run(operation, out, (x, out), timeout, blocking)

    def reduce_scatter(
        self, x: Any, op: Reduction = "sum", out: Any = None, *, timeout: float | None = None, blocking: bool = True
    ) -> Any:
        """Combine ``x`` of all ranks and keep the ``rank``-th of ``size`` equal parts along the first axis.

        ``x`` is not changed. ``out`` (optional, not overlapping ``x``) is written and returned.
        """
        address, count, dtype = locate(x, writable=False)
        shape = divided_shape(x, self.size)
        if out is None:
            out = new_like(x, shape)
        target = check_out(out, count // self.size, dtype)
        operation = Operation(
            OPS["reduce_scatter"], dtype, reduction_number(op), source=address, target=target, count=count // self.size
        )
        return self._run(operation, out, (x, out), timeout, blocking, op)

    def broadcast(self, x: Array, root: int = 0, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """Copy ``x`` of rank ``root`` into ``x`` of every other rank. Returns ``x``.

        The root does not wait for the others as long as the data fit into the buffers between them (at least 128 KiB).
        """
        self._check_rank(root)
        address, count, dtype = locate(x, writable=root != self.rank)
        operation = Operation(OPS["broadcast"], dtype, root=root, target=address, count=count)
        return self._run(operation, x, (x,), timeout, blocking)

    def reduce(
        self, x: Array, root: int = 0, op: Reduction = "sum", *, timeout: float | None = None, blocking: bool = True
    ) -> Any:
        """Combine ``x`` of all ranks into ``x`` of rank ``root``; elsewhere it stays as it is. Returns ``x``."""
        self._check_rank(root)
        address, count, dtype = locate(x, writable=root == self.rank)
        operation = Operation(
            OPS["reduce"], dtype, reduction_number(op), root=root, source=address, target=address, count=count
        )
        return self._run(operation, x, (x,), timeout, blocking, op)

    def gather(
        self, x: Any, root: int = 0, out: Any = None, *, timeout: float | None = None, blocking: bool = True
    ) -> Any:
        """Like `all_gather`, but only rank ``root`` gets the result; the others get None."""
        self._check_rank(root)
        address, count, dtype = locate(x, writable=False)
        target = 0
        if root == self.rank:
            if out is None:
                out = new_like(x, joined_shape(x, self.size))
            target = check_out(out, self.size * count, dtype)
        operation = Operation(OPS["gather"], dtype, root=root, source=address, target=target, count=count)
        return self._run(operation, out if root == self.rank else None, (x, out), timeout, blocking)

    def scatter(
        self, x: Any, root: int = 0, out: Any = None, *, timeout: float | None = None, blocking: bool = True
    ) -> Any:
        """Give every rank its equal part along the first axis of ``x`` of rank ``root``, in rank order.

        ``x`` matters at the root only (elsewhere None); there ``out`` may be left out, elsewhere it says what comes.
        """
        self._check_rank(root)
        address = 0
        if root == self.rank:
            address, total, dtype = locate(x, writable=False)
            shape = divided_shape(x, self.size)
            count = total // self.size
            if out is None:
                out = new_like(x, shape)
            target = check_out(out, count, dtype)
        else:
            if out is None:
                raise ValueError(f"rank {self.rank} receives from rank {root}: give out=, the array to receive into")
            target, count, dtype = locate(out, writable=True)
        operation = Operation(OPS["scatter"], dtype, root=root, source=address, target=target, count=count)
        return self._run(operation, out, (x, out), timeout, blocking)

    def all_to_all(
        self,
        x: Any,
        out: Any = None,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        timeout: float | None = None,
        blocking: bool = True,
    ) -> Any:
        """Part r of ``x`` goes to rank r; what comes is joined in rank order in ``out``, which must not overlap.

        Parts are equal along the first axis, or ``send_counts[r]`` and ``recv_counts[r]`` rows of it; give both.
        """
        address, total, dtype = locate(x, writable=False)
        if (send_counts is None) != (recv_counts is None):
            raise ValueError("give both send_counts and recv_counts, or neither")
        if send_counts is None or recv_counts is None:
            divided_shape(x, self.size)
            if out is None:
                out = new_like(x, x.shape)
            target = check_out(out, total, dtype)
            operation = Operation(OPS["all_to_all"], dtype, source=address, target=target, count=total // self.size)
            return self._run(operation, out, (x, out), timeout, blocking)
        sends, receives = elements_of_rows(x, send_counts, recv_counts, self.size)
        if out is None:
            out = new_like(x, (sum(recv_counts), *x.shape[1:]))
        target = check_out(out, sum(receives), dtype)
        operation = Operation(
            OPS["all_to_all"], dtype, source=address, target=target, send_counts=sends, recv_counts=receives
        )
        return self._run(operation, out, (x, out), timeout, blocking)

    def send(self, x: Any, dst: int, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """Send ``x`` to rank ``dst``, which must `recv` the same size and type. Messages of a pair keep their order.

        Returns as soon as the data are buffered (at least 256 KiB fit), before ``dst`` has asked for them.
        """
        self._check_peer(dst)
        address, count, dtype = locate(x, writable=False)
        if blocking and self._coalesced is None:
            status = self._native.send(address, count, dtype, dst, self._timeout if timeout is None else timeout)
            return self._fail(status) if status else None
        operation = Operation(OPS["send"], dtype, root=dst, source=address, count=count)
        return self._run(operation, None, (x,), timeout, blocking)

    def recv(self, x: Array, src: int, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """Receive into ``x`` what rank ``src`` sent. Returns ``x``."""
        self._check_peer(src)
        address, count, dtype = locate(x, writable=True)
        if blocking and self._coalesced is None:
            status = self._native.recv(address, count, dtype, src, self._timeout if timeout is None else timeout)
            return self._fail(status) if status else x
        operation = Operation(OPS["recv"], dtype, root=src, target=address, count=count)
        return self._run(operation, x, (x,), timeout, blocking)

    def barrier(self, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """Wait until every rank has called it."""
        return self._run(Operation(OPS["barrier"], 0), None, (), timeout, blocking)

    def coalesce(self, *, timeout: float | None = None, blocking: bool = True) -> Coalesced:
        """``with group.coalesce():`` what is called inside runs together when the block ends.

        Sends and receives run at once, in whatever order they stand; all_reduces of one type become one message.
        Results are there after the block; with ``blocking=False`` after ``wait()`` of what ``as`` gives.
        """
        return Coalesced(self, timeout, blocking)

    def split(
        self,
        color: int | None,
        key: int = 0,
        *,
        transport: TransportChoice | None = None,
        timeout: float | None = None,
    ) -> Group | None:
        """Make groups of the ranks with equal ``color``, ordered by ``key`` and then by rank in this group.

        Every rank of this group must call it; one with ``color=None`` joins no group and gets None. The new group
        has its own connections, so its operations may be interleaved with this group's in any order.
        ``transport`` (the same on all ranks of the new group) overrides this group's choice.
        """
        self._splits += 1
        made = split_group(self, self._membership, self._splits, color, key, transport, timeout)
        return None if made is None else Group(*made, self._timeout)

    def reform(self, *, timeout: float | None = None) -> Group:
        """Make a group of the ranks that are left, in the same processes, after this one has failed.

        All of them must call it, and may at different times: it waits for those that are there (``timeout``: seconds;
        the group's unless given). They keep their order; ``origin`` of the new group says which rank each one was.
        This group is over then, and had better have failed before: if not, it fails now, on all ranks.

        Raises `FabricTimeout` (a rank that is not lost does not take part), `FabricError` (the others gave this rank
        up, or this group is closed). Each side of a network that fell in two makes a group of its own: look at
        ``size``.
        """
        if not self._leave.alive:
            raise FabricError("this group is closed: reform() comes before close()")
        self.abort(f"rank {self.rank} called reform()")
        made = reform_group(self._membership, Deadline(self._timeout if timeout is None else timeout))
        origin = tuple(self._membership.members.index(member) for member in made[1].members)
        group = Group(*made, self._timeout, origin)
        self._native.close()  # a thread that is still inside finds it ended, and leaves
        self._leave()
        open_groups.discard(self)
        return group

    def describe(self) -> GroupInfo:
        """How each peer is reached; print it."""
        return self._info

    def check(self) -> None:
        """Raise why this group is closed, if it is; sends nothing, so it costs next to nothing. From any thread."""
        status = self._native.failure()[0]
        if status:
            self._fail(status)

    def abort(self, reason: str = "aborted") -> None:
        """End the group now, here and on every rank, and whatever operation is under way. Safe from any thread."""
        self._native.abort(reason)

    def close(self) -> None:
        """Finish what was started and leave the group in an orderly way. What was sent still arrives.

        Safe to call twice.
        """
        if self._native.close() == BUSY:
            raise FabricError("an operation of this group is still running in another thread; abort() ends it")
        self._leave()
        open_groups.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort(f"rank {self.rank} failed: {type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"<Group rank {self.rank} of {self.size}, {self._info.transports}>"

    def _run(
        self,
        operation: Operation,
        result: Any,
        arrays: tuple[object, ...],
        timeout: float | None,
        blocking: bool,
        op: str = "sum",
    ) -> Any:
        if self._coalesced is not None:
            self._coalesced.add(operation, arrays)
            return result
        seconds = self._timeout if timeout is None else timeout
        if blocking:
            status = self._native.run([operation], seconds)
            return self._fail(status, op) if status else result
        started = self._native.start([operation], seconds)
        if isinstance(started, int):
            self._fail(started, op)
        return Work(self, started, result, arrays)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in a group of {self.size}")

    def _check_peer(self, rank: int) -> None:
        self._check_rank(rank)
        if rank == self.rank:
            raise ValueError(f"rank {rank} cannot send to or receive from itself")

    def _fail(self, status: int, op: str = "sum") -> NoReturn:
        raise_failure(self._native, self._info, status, op)

"""The operations of a group: collectives, and messages between two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

from ferrule._native import OPS, REDUCTIONS, Operation
from ferrule.fabric.arrays import locate
from ferrule.fabric.core import NOT_HERE, Core
from ferrule.fabric.operands import divided_shape, elements_of_rows, joined_shape, make_out, reduction_number
from ferrule.fabric.work import Work

Reduction = Literal["sum", "prod", "min", "max", "avg"]
Array = TypeVar("Array")


class Operations:
    """Operations of `Group` on arrays; it says what holds for all of these."""

    rank: int
    size: int
    _core: Core

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
        if blocking and not quantized and self._core.collect is None:
            core, number = self._core, REDUCTIONS.get(op, -1)
            seconds = core.timeout if timeout is None else timeout
            status = core.native.all_reduce_tensor(x, number, seconds)
            if status == NOT_HERE:
                status = core.native.all_reduce(*locate(x, writable=True), number, seconds)
            if status:
                core.fail(status, op)
            return x
        address, count, dtype = locate(x, writable=True)
        operation = Operation(
            OPS["all_reduce"], dtype, reduction_number(op), target=address, count=count, quantized=quantized
        )
        result: Array | Work[Array] = self._core.run(operation, x, (x,), timeout, blocking, op)
        return result

    def all_gather(self, x: Any, out: Any = None, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """The arrays of all ranks joined along the first axis, in rank order; scalars become shape ``(size,)``.

        ``x`` has the same shape on every rank. ``out`` (optional) is written and returned.
        """
        address, count, dtype = locate(x, writable=False)
        out, target = make_out(x, out, joined_shape(x, self.size), self.size * count, dtype)
        operation = Operation(OPS["all_gather"], dtype, source=address, target=target, count=count)
        return self._core.run(operation, out, (x, out), timeout, blocking)

    def reduce_scatter(
        self, x: Any, op: Reduction = "sum", out: Any = None, *, timeout: float | None = None, blocking: bool = True
    ) -> Any:
        """Combine ``x`` of all ranks and keep the ``rank``-th of ``size`` equal parts along the first axis.

        ``x`` is not changed. ``out`` (optional, not overlapping ``x``) is written and returned.
        """
        address, count, dtype = locate(x, writable=False)
        out, target = make_out(x, out, divided_shape(x, self.size), count // self.size, dtype)
        operation = Operation(
            OPS["reduce_scatter"], dtype, reduction_number(op), source=address, target=target, count=count // self.size
        )
        return self._core.run(operation, out, (x, out), timeout, blocking, op)

    def broadcast(self, x: Array, root: int = 0, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """Copy ``x`` of rank ``root`` into ``x`` of every other rank. Returns ``x``.

        The root does not wait for the others as long as the data fit into the buffers between them (at least 128 KiB).
        """
        self._check_rank(root)
        address, count, dtype = locate(x, writable=root != self.rank)
        operation = Operation(OPS["broadcast"], dtype, root=root, target=address, count=count)
        return self._core.run(operation, x, (x,), timeout, blocking)

    def reduce(
        self, x: Array, root: int = 0, op: Reduction = "sum", *, timeout: float | None = None, blocking: bool = True
    ) -> Any:
        """Combine ``x`` of all ranks into ``x`` of rank ``root``; elsewhere it stays as it is. Returns ``x``."""
        self._check_rank(root)
        address, count, dtype = locate(x, writable=root == self.rank)
        operation = Operation(
            OPS["reduce"], dtype, reduction_number(op), root=root, source=address, target=address, count=count
        )
        return self._core.run(operation, x, (x,), timeout, blocking, op)

    def gather(
        self, x: Any, root: int = 0, out: Any = None, *, timeout: float | None = None, blocking: bool = True
    ) -> Any:
        """Like `all_gather`, but only rank ``root`` gets the result; the others get None."""
        self._check_rank(root)
        address, count, dtype = locate(x, writable=False)
        target = 0
        if root == self.rank:
            out, target = make_out(x, out, joined_shape(x, self.size), self.size * count, dtype)
        operation = Operation(OPS["gather"], dtype, root=root, source=address, target=target, count=count)
        return self._core.run(operation, out if root == self.rank else None, (x, out), timeout, blocking)

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
            count = total // self.size
            out, target = make_out(x, out, divided_shape(x, self.size), count, dtype)
        else:
            if out is None:
                raise ValueError(f"rank {self.rank} receives from rank {root}: give out=, the array to receive into")
            target, count, dtype = locate(out, writable=True)
        operation = Operation(OPS["scatter"], dtype, root=root, source=address, target=target, count=count)
        return self._core.run(operation, out, (x, out), timeout, blocking)

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
            out, target = make_out(x, out, x.shape, total, dtype)
            operation = Operation(OPS["all_to_all"], dtype, source=address, target=target, count=total // self.size)
            return self._core.run(operation, out, (x, out), timeout, blocking)
        sends, receives = elements_of_rows(x, send_counts, recv_counts, self.size)
        out, target = make_out(x, out, (sum(recv_counts), *x.shape[1:]), sum(receives), dtype)
        operation = Operation(
            OPS["all_to_all"], dtype, source=address, target=target, send_counts=sends, recv_counts=receives
        )
        return self._core.run(operation, out, (x, out), timeout, blocking)

    def send(self, x: Any, dst: int, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """Send ``x`` to rank ``dst``, which must `recv` the same size and type. Messages of a pair keep their order.

        Returns as soon as the data are buffered (at least 256 KiB fit), before ``dst`` has asked for them.
        """
        self._check_peer(dst)
        address, count, dtype = locate(x, writable=False)
        if blocking and self._core.collect is None:
            status = self._core.native.send(address, count, dtype, dst, self._core.seconds(timeout))
            return self._core.check(status)
        operation = Operation(OPS["send"], dtype, root=dst, source=address, count=count)
        return self._core.run(operation, None, (x,), timeout, blocking)

    def recv(self, x: Array, src: int | None, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """Receive into ``x`` what rank ``src`` sent. Returns ``x``.

        With ``src=None`` it is the message that comes first from any rank (in turn, where several have come) that no
        other `recv` waits for; `Work.source` says whose it was. It fails when all others have closed the group.
        """
        address, count, dtype = locate(x, writable=True)
        if src is None:
            if self.size == 1:
                raise ValueError("a group of one has no rank to receive from")
            return self._core.run(
                Operation(OPS["recv"], dtype, target=address, count=count), x, (x,), timeout, blocking
            )
        self._check_peer(src)
        if blocking and self._core.collect is None:
            status = self._core.native.recv(address, count, dtype, src, self._core.seconds(timeout))
            self._core.check(status)
            return x
        operation = Operation(OPS["recv"], dtype, root=src, target=address, count=count)
        return self._core.run(operation, x, (x,), timeout, blocking)

    def barrier(self, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """Wait until every rank has called it."""
        return self._core.run(Operation(OPS["barrier"], 0), None, (), timeout, blocking)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in a group of {self.size}")

    def _check_peer(self, rank: int) -> None:
        self._check_rank(rank)
        if rank == self.rank:
            raise ValueError(f"rank {rank} cannot send to or receive from itself")

"""The group of ranks that do collectives together."""

from __future__ import annotations

import atexit
import hashlib
import hmac
import socket
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar

import numpy as np

from ferrule._native import REDUCTIONS, STATUS
from ferrule.config import TransportChoice, check_transport
from ferrule.errors import FabricError, FabricTimeout, FerruleError, PeerLost
from ferrule.fabric.arrays import locate, new_like
from ferrule.fabric.describe import GroupInfo
from ferrule.fabric.hosts import RankHost
from ferrule.fabric.link import Deadline
from ferrule.fabric.mesh import Joined, join

Reduction = Literal["sum", "prod", "min", "max", "avg"]
Array = TypeVar("Array")

_PEER_LOST: int = STATUS["PEER_LOST"]
_TIMEOUT: int = STATUS["TIMEOUT"]
_INVALID: int = STATUS["INVALID"]
_BUSY: int = STATUS["BUSY"]

_SPLIT = struct.Struct("<? q q H 46s")  # takes part, color, key, port, address
_open_groups: weakref.WeakSet[Group] = weakref.WeakSet()


@dataclass(frozen=True)
class _Membership:
    """What a group must remember to make smaller ones."""

    hosts: tuple[RankHost, ...]
    epoch_key: bytes
    key: bytes
    spin_us: float | None


class Group:
    """Ranks ``0 .. size-1`` that move arrays between each other. Made by `ferrule.fabric.init` and `split`.

    Arrays are numpy arrays or torch tensors (or, as inputs with ``out`` given, anything with DLPack) in host memory,
    contiguous; they are used in place, never copied first. Element types: float64, float32, bfloat16, float16,
    int8, uint8, int32, int64, bool. All ranks must call the same operations in the same order with the same sizes;
    where they do not, the group fails with an error that says what each called. Results are bitwise equal on all
    ranks and from run to run: ranks are combined in the order 0, 1, 2...; bfloat16 and float16 accumulate in
    float32 and round once.

    Every operation takes ``timeout`` in seconds (default: the group's). On any failure (`PeerLost`,
    `FabricTimeout`, `FabricError`) the whole group is closed on every rank, and every later call raises the first
    cause again. Arrays that an operation was writing then hold nothing useful.

    One thread at a time: a second one gets a `FabricError` at once and disturbs nothing. Only `abort` may be
    called from anywhere, to end an operation that waits.
    """

    def __init__(self, joined: Joined, membership: _Membership, timeout: float) -> None:
        self._native = joined.native
        self._info = joined.info
        self._membership = membership
        self._timeout = timeout
        self._splits = 0
        self.rank: int = joined.info.rank
        self.size: int = joined.info.size
        _open_groups.add(self)

    def all_reduce(self, x: Array, op: Reduction = "sum", *, timeout: float | None = None) -> Array:
        """Combine ``x`` of all ranks element by element, in place on every rank. Returns ``x``.

        bool: sum and max are "or", prod and min are "and", avg is refused. Integers wrap around; their avg is
        cut towards zero.
        """
        address, count, dtype = locate(x, writable=True)
        status = self._native.all_reduce(
            address, count, dtype, REDUCTIONS.get(op, -1), self._timeout if timeout is None else timeout
        )
        if status:
            self._fail(status, op)
        return x

    def all_gather(self, x: Any, out: Any = None, *, timeout: float | None = None) -> Any:
        """The arrays of all ranks joined along the first axis, in rank order; scalars become shape ``(size,)``.

        ``x`` has the same shape on every rank. ``out`` (optional) is written and returned.
        """
        address, count, dtype = locate(x, writable=False)
        if out is None:
            shape = (self.size * x.shape[0], *x.shape[1:]) if x.ndim else (self.size,)
            out = new_like(x, shape)
        target, target_count, target_dtype = locate(out, writable=True)
        _check_out(target_count, target_dtype, self.size * count, dtype)
        status = self._native.all_gather(address, target, count, dtype, self._timeout if timeout is None else timeout)
        if status:
            self._fail(status)
        return out

    def reduce_scatter(self, x: Any, op: Reduction = "sum", out: Any = None, *, timeout: float | None = None) -> Any:
        """Combine ``x`` of all ranks and keep the ``rank``-th of ``size`` equal parts along the first axis.

        ``x`` is not changed. ``out`` (optional, not overlapping ``x``) is written and returned.
        """
        address, count, dtype = locate(x, writable=False)
        shape = tuple(x.shape)
        if not shape or shape[0] % self.size:
            raise ValueError(f"the first axis of shape {shape} does not divide into {self.size} equal parts")
        if out is None:
            out = new_like(x, (shape[0] // self.size, *shape[1:]))
        target, target_count, target_dtype = locate(out, writable=True)
        _check_out(target_count, target_dtype, count // self.size, dtype)
        status = self._native.reduce_scatter(
            address,
            target,
            target_count,
            dtype,
            REDUCTIONS.get(op, -1),
            self._timeout if timeout is None else timeout,
        )
        if status:
            self._fail(status, op)
        return out

    def broadcast(self, x: Array, root: int = 0, *, timeout: float | None = None) -> Array:
        """Copy ``x`` of rank ``root`` into ``x`` of every other rank. Returns ``x``.

        The root does not wait for the others as long as the data fit into the buffers between them (at least 256 KiB).
        """
        self._check_rank(root)
        address, count, dtype = locate(x, writable=root != self.rank)
        status = self._native.broadcast(address, count, dtype, root, self._timeout if timeout is None else timeout)
        if status:
            self._fail(status)
        return x

    def send(self, x: Any, dst: int, *, timeout: float | None = None) -> None:
        """Send ``x`` to rank ``dst``, which must `recv` the same size and type. Messages of a pair keep their order.

        Returns as soon as the data are buffered (at least 256 KiB fit), before ``dst`` has asked for them.
        """
        self._check_peer(dst)
        address, count, dtype = locate(x, writable=False)
        status = self._native.send(address, count, dtype, dst, self._timeout if timeout is None else timeout)
        if status:
            self._fail(status)

    def recv(self, x: Array, src: int, *, timeout: float | None = None) -> Array:
        """Receive into ``x`` what rank ``src`` sent. Returns ``x``."""
        self._check_peer(src)
        address, count, dtype = locate(x, writable=True)
        status = self._native.recv(address, count, dtype, src, self._timeout if timeout is None else timeout)
        if status:
            self._fail(status)
        return x

    def barrier(self, *, timeout: float | None = None) -> None:
        """Wait until every rank has called it."""
        status = self._native.barrier(self._timeout if timeout is None else timeout)
        if status:
            self._fail(status)

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
        if transport is not None:
            check_transport(transport, "transport")
        deadline = Deadline(self._timeout if timeout is None else timeout)
        if color is None:
            self._exchange_split(None, key, None, deadline)
            return None
        address = self._membership.hosts[self.rank].address or "127.0.0.1"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.create_server((address, 0), family=family, backlog=128) as listener:
                members = self._exchange_split(color, key, listener, deadline)
                hosts = tuple(host if transport is None else replace(host, transport=transport) for _, host in members)
                rank = [member for member, _ in members].index(self.rank)
                joined = self._join_split(color, rank, hosts, listener, deadline)
        except (FerruleError, OSError) as error:
            self.abort(f"split failed on rank {self.rank}: {error}")
            if isinstance(error, OSError):
                raise FabricError(f"split failed on rank {self.rank}: {error}") from error
            raise
        membership = replace(self._membership, hosts=hosts, epoch_key=self._split_epoch(color))
        return Group(joined, membership, self._timeout)

    def _exchange_split(
        self, color: int | None, key: int, listener: socket.socket | None, deadline: Deadline
    ) -> list[tuple[int, RankHost]]:
        """Tell all ranks what we chose and where we listen; the members of our new group, in its order."""
        self._splits += 1
        address, port = listener.getsockname()[:2] if listener else ("", 0)
        mine = _SPLIT.pack(color is not None, color or 0, key, port, address.encode())
        rows = self.all_gather(np.frombuffer(mine, dtype=np.uint8), timeout=deadline.left).tobytes()
        members = []
        for rank, host in enumerate(self._membership.hosts):
            taking_part, its_color, its_key, its_port, its_address = _SPLIT.unpack_from(rows, rank * _SPLIT.size)
            if taking_part and its_color == color:
                where = its_address.rstrip(b"\0").decode()
                members.append((its_key, rank, replace(host, address=where, port=its_port)))
        return [(rank, host) for _, rank, host in sorted(members, key=lambda member: member[:2])]

    def _split_epoch(self, color: int) -> bytes:
        """Every member can work it out alone, and no two groups have the same."""
        text = struct.pack("<Q q", self._splits, color)
        return hmac.new(self._membership.epoch_key, b"ferrule split\0" + text, hashlib.sha256).digest()

    def _join_split(
        self, color: int, rank: int, hosts: Sequence[RankHost], listener: socket.socket | None, deadline: Deadline
    ) -> Joined:
        return join(
            rank,
            hosts,
            self._split_epoch(color)[:16],
            self._membership.key,
            listener,
            deadline,
            spin_us=self._membership.spin_us,
        )

    def describe(self) -> GroupInfo:
        """How each peer is reached; print it."""
        return self._info

    def abort(self, reason: str = "aborted") -> None:
        """End the group now, here and on every rank, and whatever operation is under way. Safe from any thread."""
        self._native.abort(reason)

    def close(self) -> None:
        """Leave the group in an orderly way. What was sent still arrives. Safe to call twice."""
        if self._native.close() == _BUSY:
            raise FabricError("an operation of this group is still running in another thread; abort() ends it")
        _open_groups.discard(self)

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

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in a group of {self.size}")

    def _check_peer(self, rank: int) -> None:
        self._check_rank(rank)
        if rank == self.rank:
            raise ValueError(f"rank {rank} cannot send to or receive from itself")

    def _fail(self, status: int, op: str = "sum") -> NoReturn:
        if status == _BUSY:
            raise FabricError("another thread is using this group; a group serves one thread at a time")
        if status == _INVALID:
            if op not in REDUCTIONS:
                raise ValueError(f"there is no reduction {op!r}; use one of {', '.join(REDUCTIONS)}")
            raise TypeError(f"{op} of bool has no meaning; convert to float32 first")
        status, rank, seconds, message = self._native.failure()
        if status == _PEER_LOST:
            peer = self._info.peers[rank]
            raise PeerLost(
                f"rank {rank} on {peer.host} (pid {peer.pid}, {peer.link}) was lost after {seconds:.3g} s: {message}; "
                "the group is closed, restart the job",
                rank=rank,
                host=peer.host,
                link=peer.link,
                seconds=seconds,
            )
        if status == _TIMEOUT:
            raise FabricTimeout(f"rank {self.rank}: {message}; the group is closed")
        raise FabricError(f"{message}; the group is closed on every rank")


def _check_out(count: int, dtype: int, wanted: int, wanted_dtype: int) -> None:
    if count != wanted:
        raise ValueError(f"out has {count} elements, but the result has {wanted}")
    if dtype != wanted_dtype:
        raise TypeError("out has another element type than the input")


@atexit.register
def _close_open_groups() -> None:
    """A rank whose program ends says goodbye; only one that dies must look lost to its peers."""
    for group in list(_open_groups):
        group._native.close()

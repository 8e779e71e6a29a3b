"""The group of ranks that do collectives together."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn, Self

import numpy as np

from ferrule.config import TransportChoice, check_transport
from ferrule.errors import FabricError, FerruleError
from ferrule.fabric.coalesce import Coalesced
from ferrule.fabric.core import Core
from ferrule.fabric.describe import GroupInfo
from ferrule.fabric.device_memory import DeviceMessages
from ferrule.fabric.join.control_channel import Deadline
from ferrule.fabric.join.membership import Membership, split_group
from ferrule.fabric.join.reform import reform_group
from ferrule.fabric.operations import Operations
from ferrule.fabric.transports.build import Joined


class Group(Operations, DeviceMessages):
    """Ranks ``0 .. size-1`` that move arrays between each other. Made by `ferrule.fabric.init` and `split`.

    Arrays are numpy arrays or torch tensors (or, as inputs with ``out`` given, anything with DLPack) in host memory,
    contiguous; they are used in place, never copied first. Element types: float64, float32, bfloat16, float16, bool,
    integers of 8 to 64 bits with and without sign. All ranks must call the same collectives in the same order with the
    same sizes; where they do not, the group fails with an error that says what each called. Results are bitwise equal
    on all ranks, and from run to run on the same links (docs/fabric.md, "Algorithms", has the order of summation).

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
        self._core = Core(joined, membership.mesh, timeout)
        self._membership = membership
        self._splits = 0
        self.rank = joined.info.rank
        self.size = joined.info.size
        self.origin: tuple[int, ...] = tuple(range(self.size)) if origin is None else origin

    @property
    def native_address(self) -> int:
        """Of the native group, for native code that runs collectives on it by itself. It is there as long as this
        object is."""
        return self._core.native.address

    def fail(self, status: int) -> NoReturn:
        """Raise what ``status``, which native code got from the group at `native_address`, means."""
        self._core.fail(status)

    def coalesce(self, *, timeout: float | None = None, blocking: bool = True) -> Coalesced:
        """``with group.coalesce():`` what is called inside runs together when the block ends.

        Sends and receives run at once, in whatever order they stand; all_reduces of one type become one message.
        Results are there after the block; with ``blocking=False`` after ``wait()`` of what ``as`` gives.
        """
        return Coalesced(self._core, timeout, blocking)

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
        self._splits += 1
        deadline = Deadline(self._core.seconds(timeout))

        def exchange(mine: bytes) -> bytes:
            rows: bytes = self.all_gather(np.frombuffer(mine, dtype=np.uint8), timeout=deadline.left).tobytes()
            return rows

        try:
            made = split_group(self._membership, self._splits, exchange, color, key, transport, deadline)
        except (FerruleError, OSError) as error:
            self.abort(f"split failed on rank {self.rank}: {error}")
            if isinstance(error, OSError):
                raise FabricError(f"split failed on rank {self.rank}: {error}") from error
            raise
        return None if made is None else Group(*made, self._core.timeout)

    def reform(self, *, timeout: float | None = None) -> Group:
        """Make a group of the ranks that are left, in the same processes, after this one has failed.

        All of them must call it, and may at different times: it waits for those that are there (``timeout``: seconds;
        the group's unless given). They keep their order; ``origin`` of the new group says which rank each one was.
        This group is over then, and had better have failed before: if not, it fails now, on all ranks.

        Raises `FabricTimeout` (a rank that is not lost does not take part), `FabricError` (the others gave this rank
        up, or this group is closed). Each side of a network that fell in two makes a group of its own: look at
        ``size``.
        """
        if self._core.closed:
            raise FabricError("this group is closed: reform() comes before close()")
        self.abort(f"rank {self.rank} called reform()")
        made = reform_group(self._membership, Deadline(self._core.seconds(timeout)))
        origin = tuple(self._membership.members.index(member) for member in made[1].members)
        group = Group(*made, self._core.timeout, origin)
        self._core.native.close()  # a thread that is still inside finds it ended, and leaves
        self._core.leave()
        return group

    def take_over(self, other: Group) -> None:
        """Go on as ``other``, of the same rank and size, with its connections; this group must be closed.

        What holds this object need not learn of it, but for native code that has `native_address`. ``other`` is only
        good for closing from now on.
        """
        if not self._core.closed or (self.rank, self.size) != (other.rank, other.size):
            raise FabricError(f"{other!r} cannot take the place of {self!r}")
        self._core, self._membership, self._splits = other._core, other._membership, other._splits
        self.origin = other.origin

    def describe(self) -> GroupInfo:
        """Description of the connection to each peer; print it."""
        return self._core.info

    def check(self) -> None:
        """Raise why this group is closed, if it is; sends nothing, so it costs next to nothing. From any thread."""
        self._core.check(self._core.native.failure()[0])

    def abort(self, reason: str = "aborted") -> None:
        """End the group now, here and on every rank, and whatever operation is under way. Safe from any thread."""
        self._core.native.abort(reason)

    def close(self) -> None:
        """Finish what was started and leave the group in an orderly way. What was sent still arrives.

        Safe to call twice.
        """
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort(f"rank {self.rank} failed: {type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"<Group rank {self.rank} of {self.size}, {self._core.info.transports}>"

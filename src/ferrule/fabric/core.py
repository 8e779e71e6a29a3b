"""The native group under a `Group`: runs operations, turns their status into results or errors, and ends."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from ferrule._native import STATUS, Operation
from ferrule.errors import FabricError, FabricTimeout, PeerLost
from ferrule.fabric.join.mesh import Mesh
from ferrule.fabric.operands import reduction_number
from ferrule.fabric.transports.build import Joined
from ferrule.fabric.work import Work

NOT_HERE: int = STATUS["NOT_HERE"]
"""From native calls that only do the usual case: nothing happened, call the general one."""
_BUSY: int = STATUS["BUSY"]
_INVALID: int = STATUS["INVALID"]
_PEER_LOST: int = STATUS["PEER_LOST"]
_TIMEOUT: int = STATUS["TIMEOUT"]


class Core:
    """``native`` may be called directly where a Python call is too slow. ``timeout``: seconds of an operation.

    ``collect``: inside a ``coalesce()`` block, takes operations that are to run at its end.
    """

    def __init__(self, joined: Joined, mesh: Mesh, timeout: float) -> None:
        self.native = joined.live.native
        self.info = joined.info
        self.timeout = timeout
        self.collect: Callable[[Operation, tuple[object, ...]], None] | None = None
        mesh.enter(joined.live)
        self._leave = weakref.finalize(self, mesh.leave, joined.live.pending.epoch)
        self._leave.atexit = False  # `close_all` does it, after all groups have sent their close notice
        _open.add(self)

    @property
    def closed(self) -> bool:
        return not self._leave.alive

    def run(
        self,
        operation: Operation,
        result: Any,
        arrays: tuple[object, ...],
        timeout: float | None,
        blocking: bool,
        op: str = "sum",
    ) -> Any:
        """``result`` once ``operation`` is done, or a `Work`, which keeps ``arrays`` alive. ``op``: see `fail`."""
        if self.collect is not None:
            self.collect(operation, arrays)
            return result
        if not blocking:
            return self.start([operation], result, arrays, timeout, op)
        self.check(self.native.run([operation], self.seconds(timeout)), op)
        return result

    def start(
        self,
        operations: list[Operation],
        result: Any,
        arrays: tuple[object, ...],
        timeout: float | None,
        op: str = "sum",
    ) -> Work[Any]:
        started = self.native.start(operations, self.seconds(timeout))
        if isinstance(started, int):
            self.fail(started, op)
        return Work(started, self.info.rank, self.fail, result, arrays)

    def seconds(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def check(self, status: int, op: str = "sum") -> None:
        if status:
            self.fail(status, op)

    def fail(self, status: int, op: str = "sum") -> NoReturn:
        """Raise what ``status`` means. ``op``: the reduction that was asked for."""
        if status == _BUSY:
            raise FabricError("another thread is using this group; a group serves one thread at a time")
        if status == _INVALID:
            reduction_number(op)
            raise TypeError(
                f"{op} cannot be done with this element type: avg of bool has no meaning, and quantized=True is for "
                "sum and avg of float32, bfloat16 and float16"
            )
        status, rank, seconds, message = self.native.failure()
        if status == _PEER_LOST:
            peer = self.info.peers[rank]
            name = f"rank {rank} "
            happened = message.removeprefix(name) if message.startswith(name) else f"was lost: {message}"
            when = f" ({seconds:.3g} s into an operation)" if seconds else ""
            raise PeerLost(
                f"rank {rank} on {peer.host} (pid {peer.pid}, {peer.path}) {happened}{when}; the group is closed",
                rank=rank,
                host=peer.host,
                path=peer.path,
                seconds=seconds,
                advice="reform() makes one of the others, or restart the job",
            )
        if status == _TIMEOUT:
            raise FabricTimeout(f"Timed out on rank {self.info.rank}: {message}; the group is closed")
        raise FabricError(f"{message}; the group is closed on every rank")

    def close(self) -> None:
        """Finish what was started, send the close notice, and leave the mesh."""
        if self.native.close() == _BUSY:
            raise FabricError("an operation of this group is still running in another thread; abort() ends it")
        self.leave()

    def leave(self) -> None:
        self._leave()
        _open.discard(self)


_open: weakref.WeakSet[Core] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Close every group of this process. Registered for its end: a rank whose program ends sends close notices; only
    one that dies must look lost to its peers. Called before, `init` may meet other ranks after it."""
    cores = list(_open)
    for core in cores:
        core.native.close()
    for core in cores:
        core.leave()

"""The exception for a native group's status."""

from __future__ import annotations

from typing import NoReturn

from ferrule import _native
from ferrule._native import STATUS
from ferrule.errors import FabricError, FabricTimeout, PeerLost
from ferrule.fabric.describe import GroupInfo
from ferrule.fabric.operands import reduction_number

BUSY: int = STATUS["BUSY"]
NOT_HERE: int = STATUS["NOT_HERE"]
"""From native calls that only do the usual case: nothing happened, go another way."""
_INVALID: int = STATUS["INVALID"]
_PEER_LOST: int = STATUS["PEER_LOST"]
_TIMEOUT: int = STATUS["TIMEOUT"]


def raise_failure(native: _native.Group, info: GroupInfo, status: int, op: str) -> NoReturn:
    """The exception for a call that ended with ``status``; ``op``: the reduction that was asked for."""
    if status == BUSY:
        raise FabricError("another thread is using this group; a group serves one thread at a time")
    if status == _INVALID:
        reduction_number(op)
        raise TypeError(
            f"{op} cannot be done with this element type: avg of bool has no meaning, and quantized=True is for "
            "sum and avg of float32, bfloat16 and float16"
        )
    status, rank, seconds, message = native.failure()
    if status == _PEER_LOST:
        peer = info.peers[rank]
        name = f"rank {rank} "
        happened = message.removeprefix(name) if message.startswith(name) else f"was lost: {message}"
        when = f" ({seconds:.3g} s into an operation)" if seconds else ""
        raise PeerLost(
            f"rank {rank} on {peer.host} (pid {peer.pid}, {peer.link}) {happened}{when}; "
            "the group is closed; reform() makes one of the others, or restart the job",
            rank=rank,
            host=peer.host,
            link=peer.link,
            seconds=seconds,
        )
    if status == _TIMEOUT:
        raise FabricTimeout(f"rank {info.rank}: {message}; the group is closed")
    raise FabricError(f"{message}; the group is closed on every rank")

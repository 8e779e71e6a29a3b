"""A group whose ranks are threads of the test's own process, joined by socket pairs: quick to make, for any shape."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ferrule import _native
from ferrule.fabric.describe import GroupInfo, PeerInfo
from ferrule.fabric.group import Group
from ferrule.fabric.join.acceptor import Acceptor
from ferrule.fabric.join.membership import Membership
from ferrule.fabric.join.mesh import Live, Mesh
from ferrule.fabric.join.pending import PendingPeers
from ferrule.fabric.routing.algorithms import Strategy
from ferrule.fabric.transports.build import Joined
from ferrule.plan import Plan

Result = TypeVar("Result")
_SPIN_US = 0.0
_YIELD_US = 50.0


Ends = tuple[_native.Channel, _native.Channel]


def _sockets(stream: int, a: int, b: int, epoch: int) -> Ends:
    one, other = socket.socketpair()
    return _native.Channel.tcp(a, b, [one.detach()], epoch), _native.Channel.tcp(b, a, [other.detach()], epoch)


def thread_groups(
    size: int,
    strategy: Strategy | None = None,
    *,
    timeout: float = 30.0,
    yield_us: float = _YIELD_US,
    join: Callable[[int, int, int, int], Ends] = _sockets,
    transport: str = "tcp",
) -> list[Group]:
    """The groups of all ranks; close every one. ``join``: the channels of two ranks, by stream, ranks and epoch."""
    epoch = int.from_bytes(secrets.token_bytes(7), "little")
    strategy = strategy or Strategy()
    channels: list[list[list[_native.Channel | None]]] = [[[None] * size for _ in range(size)] for _ in range(2)]
    for number, stream in enumerate(channels):
        for a in range(size):
            for b in range(a + 1, size):
                stream[a][b], stream[b][a] = join(number, a, b, epoch)
    groups = []
    for rank in range(size):
        native = _native.Group(
            rank,
            epoch,
            channels[0][rank],
            channels[1][rank],
            None,
            [],
            _SPIN_US,
            yield_us,
            strategy.native_decisions(),
            list(strategy.tree),
            list(strategy.ring),
        )
        peers = tuple(
            PeerInfo(peer, "here", 0, "self" if peer == rank else transport, "in this process") for peer in range(size)
        )
        pending = PendingPeers(epoch.to_bytes(16, "little"), rank, size, ())
        members = tuple(range(size))
        joined = Joined(Live(native, members, rank, pending), GroupInfo(rank, size, peers))
        mesh = Mesh(rank, (), pending.epoch, b"", Acceptor(b"", rank, ()), None)
        groups.append(Group(joined, Membership(mesh, members, (), b""), timeout))
    return groups


def on_all(groups: Sequence[Group], body: Callable[[Group], Result]) -> list[Result]:
    """Run ``body`` on every rank at once; what each returned. The first error is raised once all have ended."""
    results: list[Any] = [None] * len(groups)
    errors: list[tuple[int, BaseException]] = []

    def run(group: Group) -> None:
        try:
            results[group.rank] = body(group)
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            group.abort(f"rank {group.rank}: {error}")
            errors.append((group.rank, error))

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0][1]
    return results


def on_plan(plan: Plan, body: Callable[[Group, Group], Result]) -> list[Result]:
    """The same on the ranks of ``plan``: ``body`` has the group of all of them, and that of its stage."""
    worlds, stages = thread_groups(plan.world_size), [thread_groups(stage.width) for stage in plan.stages]

    def run(world: Group) -> Result:
        shard = plan.shards[world.rank]
        return body(world, stages[shard.stage][shard.place])

    try:
        return on_all(worlds, run)
    finally:
        for group in (*worlds, *(group for stage in stages for group in stage)):
            group.close()

"""Join ranks that know each other's addresses: a connection per pair, shared memory where it is, a native group."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ferrule import _native
from ferrule.fabric.acceptor import Acceptor
from ferrule.fabric.describe import GroupInfo, PeerInfo
from ferrule.fabric.handshake import Identity, Role
from ferrule.fabric.hosts import RankHost, oversubscribed
from ferrule.fabric.link import Deadline, Link, connect
from ferrule.fabric.segment import SharedMemory, share_memory

_SPIN_US = 40.0
_YIELD_US = 1000.0
_YIELD_OVERSUBSCRIBED_US = 50.0


@dataclass(frozen=True)
class Joined:
    """A native group and what can be told about it."""

    native: _native.Group
    info: GroupInfo
    epoch: bytes


def join(
    rank: int,
    hosts: Sequence[RankHost],
    epoch: bytes,
    key: bytes,
    listener: socket.socket | None,
    deadline: Deadline,
    *,
    links: Mapping[int, Link] | None = None,
    spin_us: float | None = None,
    watch: Mapping[socket.socket, Callable[[], None]] | None = None,
) -> Joined:
    """Every rank of the new group calls this with the same hosts and epoch.

    Each rank connects to those below it and takes connections from those above, except where ``links`` already
    has one. Nobody waits in a circle: rank 0 connects to nobody, and the kernel holds a connection until it is taken.
    """
    size = len(hosts)
    all_links = dict(links or {})
    try:
        for other in range(rank):
            if other not in all_links:
                identity = Identity(Role.PEER, rank, other, size, epoch)
                all_links[other] = connect((hosts[other].address, hosts[other].port), key, identity, deadline)
        missing = [other for other in range(rank + 1, size) if other not in all_links]
        if missing:
            assert listener is not None, "a rank that others connect to listens"
            expected = Identity(Role.PEER, -1, rank, size, epoch)
            all_links |= Acceptor(listener, key, expected, missing, dict(watch or {})).run(deadline)
        _assemble(rank, all_links, deadline)
        memory = share_memory(rank, hosts, all_links, deadline)
    except BaseException:
        # Those that the caller brought stay open: it may have a last word for them.
        for other, link in all_links.items():
            if links is None or other not in links:
                link.socket.close()
        raise
    return _make(rank, hosts, epoch, all_links, memory, spin_us)


def _assemble(rank: int, links: Mapping[int, Link], deadline: Deadline) -> None:
    """Nobody goes on before everybody is connected: until then a word from rank 0 means that it gave up."""
    if rank == 0:
        for link in links.values():
            link.receive(deadline)
        for link in links.values():
            link.send({"go": True}, deadline)
    else:
        links[0].send({"connected": True}, deadline)
        links[0].receive(deadline)


def _make(
    rank: int,
    hosts: Sequence[RankHost],
    epoch: bytes,
    links: Mapping[int, Link],
    memory: SharedMemory,
    spin_us: float | None,
) -> Joined:
    names = {other: _name(link.socket) for other, link in links.items()}
    crowded = oversubscribed([host.cpus for host in hosts if host.memory_id == hosts[rank].memory_id])
    if spin_us is None:
        spin_us = 0.0 if crowded else _SPIN_US
    fds = [links[other].socket.detach() if other != rank else -1 for other in range(len(hosts))]
    native = _native.Group(
        rank,
        fds,
        int.from_bytes(epoch[:8], "little"),
        memory.segment,
        list(memory.local_index),
        spin_us,
        _YIELD_OVERSUBSCRIBED_US if crowded else _YIELD_US,
    )
    peers = []
    for other, host in enumerate(hosts):
        transport = native.transport(other)
        link = {"self": "-", "shm": "shared memory"}.get(transport) or f"tcp {names[other]}"
        peers.append(PeerInfo(other, host.host, host.pid, transport, link))
    notes = [f"no shared memory: {memory.reason}"] if memory.reason else []
    if crowded:
        notes.append("more ranks than cores on this host: waiting yields at once")
    return Joined(native, GroupInfo(rank, len(hosts), tuple(peers), tuple(notes)), epoch)


def _name(sock: socket.socket) -> str:
    host, port = sock.getpeername()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

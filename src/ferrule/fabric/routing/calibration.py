"""Measure what messages cost over the links of a group, each pair of ranks by itself."""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from ferrule import _native
from ferrule.errors import FabricTimeout, RendezvousError
from ferrule.fabric.join.control_channel import ControlChannel, Deadline, read_exactly
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.costs import PairCosts

_SLEEPING_ROUNDS = 10
_ROUNDS = 4
_MAX_SETS = 6
_SETS_SECONDS = 5e-3
_SMALL_BYTES = 8
_FIRST_BURST = 64 << 10
_LAST_BURST = 8 << 20
_BURST_SECONDS = 6e-3
"""A burst that takes so long says what a link carries; a shorter one may sit in a buffer on its way."""
_BURST_ROUND_TRIPS = 16
"""And so many round trips: over fewer, full windows and the wait for the last answer hide what a socket can carry."""
_LONGEST_BURST_SECONDS = 0.1
_TRIES = 2
"""Of each burst; the quicker one counts, since a busy host makes a burst slower but never quicker than its link."""
SECOND_SOCKET_GAIN = 1.25
"""Speed-up by which two sockets are worth it: with one, small messages are quicker."""
_SLICE = 256 << 10
_COUNT = struct.Struct("<Q")
_RESULT = struct.Struct("<d")

_LOOPBACK_ALPHA, _LOOPBACK_BETA = 5e-6, 4e-10
"""TCP within a host, at most: more than that is no link but the wait for a core, which `PairCosts.crowding` has."""

Pair = tuple[int, int]
Cost = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True)
class Measured:
    """Of one rail or pair: ``alpha`` in seconds, one way; seconds per byte ``up`` (to the higher rank) and ``down``.

    ``sockets``: over how many at a time these bytes went, 2 where that was so much faster than one. ``at``: when, in
    seconds since 1970, if at an earlier start.
    """

    alpha: Cost
    up: Cost
    down: Cost
    sockets: Annotated[int, Meta(ge=1, le=2)] = 1
    at: float | None = None


def together(rails: Sequence[Measured]) -> Measured:
    """Several rails as one: the latency of the best, the bandwidths added up."""
    up = 1 / sum(1 / rail.up for rail in rails)
    down = 1 / sum(1 / rail.down for rail in rails)
    return Measured(min(rail.alpha for rail in rails), up, down)


def representatives(hosts: Sequence[RankHost], pairs: Iterable[Pair]) -> dict[Pair, Pair]:
    """For each of ``pairs`` (lower, higher) the first one between the same two hosts: their links are the same."""
    first: dict[frozenset[str], Pair] = {}
    chosen = {}
    for low, high in sorted(pairs):
        between = frozenset((hosts[low].memory_id, hosts[high].memory_id))
        chosen[low, high] = first.setdefault(between, (low, high))
    return chosen


def schedule(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Rounds in which no rank has more than one partner. The same on every rank."""
    rounds: list[list[Pair]] = []
    for pair in sorted(set(pairs)):
        for one in rounds:
            if not any(set(pair) & set(other) for other in one):
                one.append(pair)
                break
        else:
            rounds.append([pair])
    return rounds


def measure(
    channel: ControlChannel, *, higher: bool, deadline: Deadline, second: ControlChannel | None = None
) -> Measured:
    """Both ranks of a pair call this for the same rail; takes some 20 ms. Raises `RendezvousError`, `FabricTimeout`.

    ``second``: another connection over the same interfaces, given on both ranks or on none. Then both together are
    measured, too, and count if they are faster by `SECOND_SOCKET_GAIN`.
    """
    alpha = _latency(channel, higher, deadline)
    enough = min(_LONGEST_BURST_SECONDS, max(_BURST_SECONDS, _BURST_ROUND_TRIPS * 2 * alpha))
    one = Measured(alpha, *_bandwidths([channel], enough, higher, deadline))
    if second is None:
        return one
    two = Measured(alpha, *_bandwidths([channel, second], enough, higher, deadline), sockets=2)
    gain = min(one.up / two.up, one.down / two.down)
    return two if gain >= SECOND_SOCKET_GAIN else one


def _bandwidths(
    channels: Sequence[ControlChannel], enough: float, higher: bool, deadline: Deadline
) -> tuple[float, float]:
    """Seconds per byte up and down, by bursts that take ``enough`` seconds."""
    if higher:
        down = _send_bursts(channels, enough, deadline)
        return _receive_bursts(channels, deadline), down
    down = _receive_bursts(channels, deadline)
    return _send_bursts(channels, enough, deadline), down


def _latency(channel: ControlChannel, higher: bool, deadline: Deadline) -> float:
    """Seconds that a small message takes at best: whatever else the hosts are doing now is not the link's fault.

    Both ways of waiting are tried: to spin is quicker while there is a core for that, to sleep where there is none.
    """
    small = np.zeros(_SMALL_BYTES, np.uint8)
    word = bytes(_SMALL_BYTES)
    _send(channel, word, deadline)
    _receive(channel, len(word), deadline)
    best = float("inf")
    for _ in range(_SLEEPING_ROUNDS):
        begin = time.perf_counter()
        if higher:
            _send(channel, word, deadline)
        _receive(channel, len(word), deadline)
        if higher:
            best = min(best, (time.perf_counter() - begin) / 2)
        else:
            _send(channel, word, deadline)
    begin = time.perf_counter()
    for number in range(_MAX_SETS):
        try:
            times = _native.raw_tcp_ping_pong(
                channel.socket.fileno(), small.ctypes.data, _SMALL_BYTES, _ROUNDS, higher, max(deadline.left, 1e-3)
            )
        except RuntimeError as error:
            raise RendezvousError(f"rank {channel.peer} left while the path to it was measured ({error})") from error
        if higher:
            best = min(best, *(microseconds * 1e-6 for microseconds in times))
            # On a busy machine a set may take long.
            enough = number + 1 == _MAX_SETS or time.perf_counter() - begin > _SETS_SECONDS
            _send(channel, _RESULT.pack(best if enough else math.nan), deadline)
        else:
            (best,) = _RESULT.unpack(_receive(channel, _RESULT.size, deadline))
            enough = not math.isnan(best)
        if enough:
            break
    return best


def _send_bursts(channels: Sequence[ControlChannel], enough: float, deadline: Deadline) -> float:
    """Larger and larger ones until one takes ``enough`` seconds; seconds per byte."""
    size = _FIRST_BURST
    while True:
        seconds = min(_send_burst(channels, size, deadline) for _ in range(_TRIES))
        if seconds >= enough or size >= _LAST_BURST:
            break
        size *= 4 if seconds < enough / 8 else 2
    # The way there and back of the answer is in it, too: little beside a burst, and never in favour of the link.
    beta = seconds / size
    _send(channels[0], _COUNT.pack(0) + _RESULT.pack(beta), deadline)
    return beta


def _send_burst(channels: Sequence[ControlChannel], size: int, deadline: Deadline) -> float:
    """Seconds until the other end has it all, an equal part over each socket."""
    first = channels[0]
    part = memoryview(bytes(size // len(channels)))
    begin = time.perf_counter()
    _send(first, _COUNT.pack(size), deadline)
    if len(channels) == 1:
        _send(first, part, deadline)
    else:
        _in_turn(channels, len(part), deadline, lambda sock, done: sock.send(part[done : done + _SLICE]), write=True)
    _receive(first, 1, deadline)
    return time.perf_counter() - begin


def _receive_bursts(channels: Sequence[ControlChannel], deadline: Deadline) -> float:
    first = channels[0]
    buffer = memoryview(bytearray(1 << 20))
    while True:
        (size,) = _COUNT.unpack(_receive(first, _COUNT.size, deadline))
        if size == 0:
            (beta,) = _RESULT.unpack(_receive(first, _RESULT.size, deadline))
            return float(beta)
        if size > _LAST_BURST * 2:
            raise RendezvousError(f"rank {first.peer} announced a burst of {size} bytes, which none of ours has")
        part = size // len(channels)

        def receive(sock: socket.socket, done: int, part: int = part) -> int:
            return sock.recv_into(buffer, min(part - done, len(buffer)))

        _in_turn(channels, part, deadline, receive)
        _send(first, b"\1", deadline)


def _in_turn(
    channels: Sequence[ControlChannel],
    part: int,
    deadline: Deadline,
    move: Callable[[socket.socket, int], int],
    *,
    write: bool = False,
) -> None:
    """Move ``part`` bytes over each socket, whichever is ready. ``move(socket, done)`` tells how many it moved."""
    event = select.POLLOUT if write else select.POLLIN
    waiting = select.poll()
    done = {channel.socket.fileno(): 0 for channel in channels}
    by_fd = {channel.socket.fileno(): channel for channel in channels}
    for channel in channels:
        channel.socket.settimeout(0)
        waiting.register(channel.socket, event)
    while done:
        ready = waiting.poll(max(deadline.left, 1e-3) * 1e3)
        if not ready and deadline.passed:
            raise _lost(channels[0], TimeoutError())
        for fd, _ in ready:
            try:
                moved = move(by_fd[fd].socket, done[fd])
            except BlockingIOError:
                continue
            except OSError as error:
                raise _lost(by_fd[fd], error) from error
            if moved == 0:
                raise RendezvousError(f"rank {by_fd[fd].peer} left while the path to it was measured")
            done[fd] += moved
            if done[fd] == part:
                waiting.unregister(fd)
                del done[fd]


def _receive(channel: ControlChannel, count: int, deadline: Deadline) -> bytes:
    return read_exactly(channel.socket, count, deadline, f"rank {channel.peer}")


def _send(channel: ControlChannel, data: bytes | memoryview, deadline: Deadline) -> None:
    channel.socket.settimeout(max(deadline.left, 1e-3))
    try:
        channel.socket.sendall(data)
    except OSError as error:
        raise _lost(channel, error) from error


def _lost(channel: ControlChannel, error: OSError) -> RendezvousError | FabricTimeout:
    if isinstance(error, TimeoutError):
        return FabricTimeout(f"rank {channel.peer} took too long while the path to it was measured")
    return RendezvousError(f"rank {channel.peer} left while the path to it was measured ({error})")


def matrix(
    hosts: Sequence[RankHost], typical: Mapping[Pair, Measured | None], measured: Mapping[Pair, Measured]
) -> PairCosts | None:
    """The costs between all ranks, or None when those of a pair with a direct path are missing.

    ``typical``: of each such pair (lower, higher), None where they have to be measured; ``measured``: of these, or of
    the pair that stands for them.
    """
    size = len(hosts)
    alpha: list[list[float | None]] = [[None] * size for _ in range(size)]
    beta: list[list[float | None]] = [[None] * size for _ in range(size)]
    stands_for = representatives(hosts, (pair for pair, costs in typical.items() if costs is None))
    for (low, high), costs in typical.items():
        one = costs or measured.get(stands_for[low, high])
        if one is None:
            return None
        if costs is None and hosts[low].memory_id == hosts[high].memory_id:
            one = Measured(min(one.alpha, _LOOPBACK_ALPHA), min(one.up, _LOOPBACK_BETA), min(one.down, _LOOPBACK_BETA))
        alpha[low][high] = alpha[high][low] = one.alpha
        # To the same host both ways alike, whichever rank is the higher one there.
        swapped = costs is None and hosts[stands_for[low, high][0]].memory_id != hosts[low].memory_id
        beta[low][high], beta[high][low] = (one.down, one.up) if swapped else (one.up, one.down)
    return PairCosts(tuple(map(tuple, alpha)), tuple(map(tuple, beta)), _crowding(hosts))


def _crowding(hosts: Sequence[RankHost]) -> float:
    """Number of ranks that share a core on the fullest host."""
    fullest = 1.0
    for memory_id in {host.memory_id for host in hosts}:
        here = [host.cpus for host in hosts if host.memory_id == memory_id]
        fullest = max(fullest, len(here) / max(1, len(set().union(*here))))
    return fullest

"""Time messages to and fro between two ends. Both call the same function at the same time."""

from __future__ import annotations

import ctypes
import functools
import math
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from ferrule import _native
from ferrule.errors import LinkError
from ferrule.fabric.join.control_channel import ControlChannel, Deadline, read_exactly
from ferrule.links import Latency

_FIRST_ROUNDS, _LEAST_ROUNDS, _MOST_ROUNDS = 2, 5, 400
_LONG_SECONDS = 2e-3
"""Seconds from which a message takes the same however it is waited for."""
MAX_BYTES = 1 << 28
"""Of the largest message that may be asked for."""


@dataclass(frozen=True)
class Exchange:
    """Exchange of messages to and fro. ``play``: so many bytes, so many rounds, whether this end starts; seconds one
    way of each round. ``alone``: the end that starts does everything.
    """

    play: Callable[[int, int, bool, Deadline], list[float]]
    alone: bool = False


class Rounds(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """To the end that does not start: so many with messages of ``size`` bytes; 0: that was all."""

    exchange: str
    size: Annotated[int, Meta(ge=0, le=MAX_BYTES)]
    rounds: Annotated[int, Meta(ge=0, le=_MOST_ROUNDS)]


def time_messages(
    control: ControlChannel,
    exchanges: Mapping[str, Exchange],
    sizes: Sequence[int],
    seconds: float,
    *,
    starts: bool,
    deadline: Deadline,
) -> list[Latency]:
    """Messages of each size to and fro, for about ``seconds`` each.

    All ``exchanges`` are tried, and the quickest counts. ``control`` is the connection on which the ends agree, and no
    exchange uses it. The end that does not start gets an empty list.
    """
    found: list[Latency] = []
    if not starts:
        while (order := control.receive(Rounds, deadline)).rounds:
            if order.exchange not in exchanges:
                raise LinkError(f"the other end asks for messages by {order.exchange!r}, which this one does not know")
            exchanges[order.exchange].play(order.size, order.rounds, False, deadline)
        return []
    for size in sizes:
        if _expected(found, size) > deadline.left / 2:
            break  # the link is too slow for such messages
        tried: list[list[float]] = []
        for name, exchange in exchanges.items():
            if not tried or statistics.median(tried[0]) < _LONG_SECONDS:
                tried.append(_samples(control, name, exchange, size, seconds / len(exchanges), deadline))
        ordered = sorted(min(tried, key=statistics.median))
        p99 = ordered[math.ceil(0.99 * (len(ordered) - 1))]
        found.append(Latency(size, ordered[0], statistics.median(ordered), p99))
    control.send(Rounds("", 0, 0), deadline)
    return found


def _expected(found: Sequence[Latency], size: int) -> float:
    """Seconds that measuring messages of ``size`` bytes takes at least, from those before."""
    if len(found) < 2:
        return 0.0
    first, last = found[0], found[-1]
    one_way = last.median + max(0.0, last.median - first.median) * (size - last.size) / (last.size - first.size)
    return 2 * (_FIRST_ROUNDS + _LEAST_ROUNDS) * one_way


def _samples(
    control: ControlChannel, name: str, exchange: Exchange, size: int, seconds: float, deadline: Deadline
) -> list[float]:
    """A few rounds to warm up and to see how many fit into the time, and then those."""
    rounds = _FIRST_ROUNDS
    for turn in range(2):
        if not exchange.alone:
            control.send(Rounds(name, size, rounds), deadline)
        samples = exchange.play(size, rounds, True, deadline)
        if turn == 0:
            rounds = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(seconds / (2 * min(samples)))))
    return samples


def tcp_exchanges(sock: socket.socket, other: socket.socket | None = None) -> dict[str, Exchange]:
    """Exchanges over ``sock`` by the ways in which two ends may wait: to poll is quicker while each has a core for
    that, to sleep where not. ``other``: the second end's socket, where both are on one machine. There two that poll,
    and what joins them, may fight for cores; one thread that drives both ends sees what ends with a core each would
    see.
    """
    exchanges = {
        "sleep": Exchange(functools.partial(_sleeping, sock)),
        "poll": Exchange(functools.partial(_polling, sock)),
    }
    if other is not None:
        exchanges["alone"] = Exchange(functools.partial(_alone, sock, other), alone=True)
    return exchanges


def _sleeping(sock: socket.socket, size: int, rounds: int, starts: bool, deadline: Deadline) -> list[float]:
    message = bytes(size)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        if starts:
            send_all(sock, message, deadline)
        read_exactly(sock, size, deadline, "the other end")
        if not starts:
            send_all(sock, message, deadline)
        times.append((time.perf_counter() - begin) / 2)
    return times


def _polling(sock: socket.socket, size: int, rounds: int, starts: bool, deadline: Deadline) -> list[float]:
    run = functools.partial(_native.raw_tcp_ping_pong, sock.fileno())
    return timed(size, deadline, lambda at, left: run(at, size, rounds, starts, left))


def _alone(
    sock: socket.socket, other: socket.socket, size: int, rounds: int, starts: bool, deadline: Deadline
) -> list[float]:
    run = functools.partial(_native.raw_tcp_alone, sock.fileno(), other.fileno())
    return timed(size, deadline, lambda at, left: run(at, size, rounds, left))


def timed(size: int, deadline: Deadline, run: Callable[[int, float], list[float]]) -> list[float]:
    """Seconds of each round of ``run``, native code that is given the address of ``size`` bytes and the seconds that
    are left, and tells microseconds. What goes wrong in it becomes a `LinkError`."""
    data = (ctypes.c_ubyte * size)()
    try:
        times = run(ctypes.addressof(data), max(deadline.left, 1e-3))
    except RuntimeError as error:
        raise LinkError(f"messages of {size} bytes: {error}") from error
    return [microseconds * 1e-6 for microseconds in times]


def send_all(sock: socket.socket, message: bytes, deadline: Deadline) -> None:
    sock.settimeout(max(deadline.left, 1e-3))
    try:
        sock.sendall(message)
    except OSError as error:
        raise LinkError(f"messages of {len(message)} bytes: {error}") from error

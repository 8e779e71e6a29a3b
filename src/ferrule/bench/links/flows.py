"""Time messages and streams over authenticated connections. Both ends call the same function at the same time."""

from __future__ import annotations

import ctypes
import math
import socket
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ferrule import _native
from ferrule.errors import LinkError
from ferrule.fabric.link import Deadline, Link, read_exactly

_CHUNK = 1 << 20
_PATIENCE = 0.1
"""How long a thread waits in the kernel before it looks at the clock."""
_GRACE = 1.0
"""For what is still under way when a stream's time is over."""
_FIRST_ROUNDS, _LEAST_ROUNDS, _MOST_ROUNDS = 2, 5, 400
_LONG = 2e-3
"""What takes so many seconds is not quicker or slower by how it is waited for."""
_GO = b"G"


def time_messages(link: Link, sizes: Sequence[int], seconds: float, *, starts: bool, deadline: Deadline) -> list[Any]:
    """Messages of each size to and fro, for about ``seconds`` each: ``[size, minimum, median, p99]``, one way.

    Both ways of waiting are tried, and the quicker one counts: to poll is quicker while there is a core for that, to
    sleep where there is none. Who does not start gets an empty list.
    """
    found: list[Any] = []
    if not starts:
        while (order := link.receive(deadline)).get("rounds"):
            _play(link, order["way"], order["size"], order["rounds"], starts=False, deadline=deadline)
        return []
    for size in sizes:
        if _expected(found, size) > deadline.left / 2:
            break  # the link is too slow for such messages
        ways = [_samples(link, "sleep", size, seconds / 2, deadline)]
        if statistics.median(ways[0]) < _LONG:
            ways.append(_samples(link, "poll", size, seconds / 2, deadline))
        ordered = sorted(min(ways, key=statistics.median))
        found.append([size, ordered[0], statistics.median(ordered), ordered[math.ceil(0.99 * (len(ordered) - 1))]])
    link.send({"rounds": 0}, deadline)
    return found


def _expected(found: Sequence[Any], size: int) -> float:
    """Seconds that measuring messages of ``size`` bytes takes at least, from those before."""
    if len(found) < 2:
        return 0.0
    (first, _, at_first, _), (last, _, at_last, _) = found[0], found[-1]
    one_way = at_last + max(0.0, at_last - at_first) * (size - last) / (last - first)
    return float(2 * (_FIRST_ROUNDS + _LEAST_ROUNDS) * one_way)


def _samples(link: Link, way: str, size: int, seconds: float, deadline: Deadline) -> list[float]:
    """A few rounds to warm up and to see how many fit into the time, and then those."""
    rounds = _FIRST_ROUNDS
    for turn in range(2):
        link.send({"way": way, "size": size, "rounds": rounds}, deadline)
        samples = _play(link, way, size, rounds, starts=True, deadline=deadline)
        if turn == 0:
            rounds = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(seconds / (2 * min(samples)))))
    return samples


def _play(link: Link, way: str, size: int, rounds: int, *, starts: bool, deadline: Deadline) -> list[float]:
    """Seconds one way of each round."""
    if way == "poll":
        data = (ctypes.c_char * size)()
        left = max(deadline.left, 1e-3)
        try:
            times = _native.raw_tcp_ping_pong(link.socket.fileno(), ctypes.addressof(data), size, rounds, starts, left)
        except RuntimeError as error:
            raise LinkError(f"messages of {size} bytes: {error}") from error
        return [microseconds * 1e-6 for microseconds in times]
    message = bytes(size)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        if starts:
            _send(link.socket, message, deadline)
        read_exactly(link.socket, size, deadline, "the other end")
        if not starts:
            _send(link.socket, message, deadline)
        times.append((time.perf_counter() - begin) / 2)
    return times


def _send(sock: socket.socket, message: bytes, deadline: Deadline) -> None:
    sock.settimeout(max(deadline.left, 1e-3))
    try:
        sock.sendall(message)
    except OSError as error:
        raise LinkError(f"messages of {len(message)} bytes: {error}") from error


@dataclass(frozen=True)
class Stream:
    """A connection and what is done with it here."""

    link: Link
    does: Literal["send", "receive"]


def run_streams(streams: Sequence[Stream], seconds: float, warm: float, *, starts: bool, deadline: Deadline) -> Any:
    """All at once for ``seconds``, of which the first ``warm`` do not count. For each stream its goodput in bits/s here
    (0 where this end sends), and which part of a core the busiest thread needed.
    """
    results: list[tuple[float, float]] = [(0.0, 0.0)] * len(streams)
    for stream in streams:
        # Whoever does not start waits for the word on each connection.
        if starts:
            _send(stream.link.socket, _GO, deadline)
        else:
            read_exactly(stream.link.socket, 1, deadline, "the other end")
    begin = time.perf_counter()

    def run(number: int) -> None:
        sock = streams[number].link.socket
        sock.settimeout(_PATIENCE)
        busy = time.thread_time()
        if streams[number].does == "send":
            _pour(sock, begin + seconds)
            rate = 0.0
        else:
            rate = _drain(sock, begin + warm, begin + seconds)
        results[number] = rate, (time.thread_time() - busy) / (time.perf_counter() - begin)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 3 * _GRACE)
    return {"rates": [rate for rate, _ in results], "processor": max(share for _, share in results)}


def _pour(sock: socket.socket, end: float) -> None:
    view = memoryview(bytes(_CHUNK))
    try:
        while time.perf_counter() < end:
            try:
                sock.send(view)
            except TimeoutError:
                continue
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return  # what arrived tells


def _drain(sock: socket.socket, begin: float, end: float) -> float:
    """Bits per second from the first arrival after ``begin`` to the last one before ``end``; all that comes is read."""
    buffer = bytearray(_CHUNK)
    first = last = 0.0
    count = 0
    while (now := time.perf_counter()) < end + _GRACE:
        try:
            got = sock.recv_into(buffer)
        except TimeoutError:
            continue
        except OSError:
            break
        if not got:
            break
        now = time.perf_counter()
        if begin <= now <= end:
            if first:
                count += got
                last = now
            else:
                first = now
    return count * 8 / (last - first) if last > first else 0.0

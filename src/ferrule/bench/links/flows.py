"""Streams over authenticated connections. Both ends call the same function at the same time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ferrule.bench.links.messages import send_all
from ferrule.fabric.link import Deadline, Link, read_exactly

_CHUNK = 1 << 20
_PATIENCE = 0.1
"""How long a thread waits in the kernel before it looks at the clock."""
_GRACE = 1.0
"""For what is still under way when a stream's time is over."""
_GO = b"G"


@dataclass(frozen=True)
class Stream:
    """A connection and what is done with it here."""

    link: Link
    does: Literal["send", "receive"]


def run_streams(streams: Sequence[Stream], seconds: float, warm: float, *, starts: bool, deadline: Deadline) -> Any:
    """All at once for ``seconds``, of which the first ``warm`` do not count. For each stream its goodput in bits/s here
    (0 where this end sends), and how busy this machine was meanwhile: which part of its processors was in use, or of
    one by the busiest thread.
    """
    import psutil

    results: list[tuple[float, float]] = [(0.0, 0.0)] * len(streams)
    for stream in streams:
        # Whoever does not start waits for the word on each connection.
        if starts:
            send_all(stream.link.socket, _GO, deadline)
        else:
            read_exactly(stream.link.socket, 1, deadline, "the other end")
    begin = time.perf_counter()
    before = psutil.cpu_times()

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
    in_use = _in_use(before, psutil.cpu_times())
    return {"rates": [rate for rate, _ in results], "busy": max(in_use, *(share for _, share in results))}


def _in_use(before: Any, after: Any) -> float:
    """Which part of all processors' time between two readings was not idle."""
    spent = {name: now - then for name, now, then in zip(after._fields, after, before, strict=True)}
    # Linux counts a guest's time as its owner's, too.
    total = sum(seconds for name, seconds in spent.items() if not name.startswith("guest"))
    idle = spent["idle"] + spent.get("iowait", 0.0)
    return 1.0 - idle / total if total > 0 else 0.0


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

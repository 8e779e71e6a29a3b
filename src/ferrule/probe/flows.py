"""Streams over authenticated connections. Both ends call the same function at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ferrule.fabric.join.control_channel import Deadline
from ferrule.probe.pipes import GRACE_SECONDS, Pipe


@dataclass(frozen=True)
class Stream:
    """A pipe and what is done with it here."""

    pipe: Pipe
    does: Literal["send", "receive"]


def run_streams(
    streams: Sequence[Stream], seconds: float, warm: float, *, starts: bool, deadline: Deadline
) -> tuple[list[float], float]:
    """All at once for ``seconds``, of which the first ``warm`` do not count. For each stream its goodput in bits/s here
    (0 where this end sends), and how busy this machine was meanwhile: which part of its processors was in use, or of
    one by the busiest thread.
    """
    import psutil

    results: list[tuple[float, float]] = [(0.0, 0.0)] * len(streams)
    for stream in streams:
        # The end that does not start waits for the word on each of them.
        if starts:
            stream.pipe.say(deadline)
        else:
            stream.pipe.hear(deadline)
    begin = time.perf_counter()
    before = psutil.cpu_times()

    def run(number: int) -> None:
        stream = streams[number]
        rate = 0.0
        busy = time.thread_time()
        if stream.does == "send":
            stream.pipe.pour(begin + seconds)
        else:
            rate = stream.pipe.drain(begin + warm, begin + seconds)
        results[number] = rate, (time.thread_time() - busy) / (time.perf_counter() - begin)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 3 * GRACE_SECONDS)
    in_use = _in_use(before, psutil.cpu_times())
    return [rate for rate, _ in results], max(in_use, *(share for _, share in results))


def _in_use(before: Any, after: Any) -> float:
    """Part of all processors' time between two readings that was not idle."""
    spent = {name: now - then for name, now, then in zip(after._fields, after, before, strict=True)}
    # Linux counts a guest's time as its owner's, too.
    total = sum(seconds for name, seconds in spent.items() if not name.startswith("guest"))
    idle = spent["idle"] + spent.get("iowait", 0.0)
    return 1.0 - idle / total if total > 0 else 0.0

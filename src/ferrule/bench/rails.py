"""Two hosts joined by several cables: does a large all_reduce use all of each, also while one comes and goes?"""

from __future__ import annotations

import os
import select
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ferrule.errors import FabricError
from ferrule.lab import Cable, Lab, pair
from ferrule.launch import LocalLauncher

_RAW_SECONDS = 1.0
_RAW_TIMEOUT = 20.0
_CHUNK = 1 << 18
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Moment:
    """One all_reduce: seconds from the first one's end to its end, and how long it took."""

    at: float
    seconds: float


@dataclass(frozen=True)
class RailsBench:
    """``raw[k]``: bits per second of a plain socket over cable k alone. ``size`` of the array in bytes."""

    raw: tuple[float, ...]
    size: int
    moments: tuple[Moment, ...]

    def rate(self, begin: float = 0.0, end: float = float("inf")) -> float:
        """Bits per second in each direction, as the median of the all_reduces that ran wholly between two moments.

        Between two ranks an all_reduce of n bytes has to move n bytes each way. 0 where none ran.
        """
        times = [moment.seconds for moment in self.moments if begin <= moment.at - moment.seconds and moment.at <= end]
        return self.size * 8 / statistics.median(times) if times else 0.0

    @property
    def share(self) -> float:
        """Part of the sum of the cables that all_reduce reaches."""
        return self.rate() / sum(self.raw)

    @property
    def best_share(self) -> float:
        """The same for the quickest all_reduce."""
        return self.size * 8 / min(moment.seconds for moment in self.moments) / sum(self.raw)


def bench_rails(
    rates: Sequence[float],
    *,
    size: int = 32 << 20,
    seconds: float = 5.0,
    faults: Sequence[tuple[float, Callable[[Sequence[Cable]], None]]] = (),
) -> RailsBench:
    """All-reduce float32 arrays of ``size`` bytes between two emulated hosts with a cable for each of ``rates``.

    First each cable is measured alone, with one plain socket. ``rates`` are in bits per second. ``faults``: what to do
    to the cables, and how many seconds after the first all_reduce. Raises `FabricError` when a rank fails, a result
    is wrong or nothing moves any more; `LabError` where there can be no lab.
    """
    with Lab(pair(rates=rates)) as lab:
        raw = tuple(_raw_rate(lab, cable) for cable in lab.cables)
        moments = _run_ranks(lab, size, seconds, sorted(faults, key=lambda fault: fault[0]))
    return RailsBench(raw, size, moments)


def _raw_rate(lab: Lab, cable: Cable) -> float:
    """Bits per second from host 0 to host 1, without the first fifth, in which TCP finds its speed."""
    with lab.inside(1):
        listener = socket.create_server((cable.address(1), 0))
    listener.settimeout(_RAW_TIMEOUT)

    def send() -> None:
        with lab.inside(0), socket.create_connection(listener.getsockname(), _RAW_TIMEOUT) as connection:
            end = time.monotonic() + _RAW_SECONDS
            while time.monotonic() < end:
                connection.sendall(bytes(_CHUNK))

    sender = threading.Thread(target=send)
    sender.start()
    arrivals: list[tuple[float, int]] = []
    with listener, listener.accept()[0] as connection:
        connection.settimeout(_RAW_TIMEOUT)
        buffer = bytearray(_CHUNK)
        total = 0
        while count := connection.recv_into(buffer):
            total += count
            arrivals.append((time.monotonic(), total))
    sender.join()
    begin = arrivals[0][0] + _RAW_SECONDS / 5
    first = next(arrival for arrival in arrivals if arrival[0] >= begin)
    return (arrivals[-1][1] - first[1]) * 8 / (arrivals[-1][0] - first[0])


def _run_ranks(
    lab: Lab, size: int, seconds: float, faults: Sequence[tuple[float, Callable[[Sequence[Cable]], None]]]
) -> tuple[Moment, ...]:
    reader, writer = os.pipe()
    argv = [sys.executable, "-m", "ferrule.bench.rails_rank", str(size), str(seconds)]
    launcher = LocalLauncher(
        lambda rank: lab.command(rank, argv),
        2,
        env={"FERRULE_TIMEOUT": "30", "REPORT_FD": str(writer)},
        rank_env=lab.rank_env(),
        pass_fds=[[writer], []],
    )
    with launcher, os.fdopen(reader, "rb", buffering=0) as reports:
        os.close(writer)
        moments = _follow(reports.fileno(), lab.cables, seconds, list(faults))
        result = launcher.wait(_START_SECONDS)
    if result.first_failed is not None:
        raise FabricError(f"rank {result.first_failed} of the benchmark failed with status {result.exit_code}")
    return moments


def _follow(
    reports: int, cables: Sequence[Cable], seconds: float, faults: list[tuple[float, Callable[[Sequence[Cable]], None]]]
) -> tuple[Moment, ...]:
    """Read what rank 0 reports until its end, and let the faults happen in time."""
    begin: float | None = None
    moments: list[Moment] = []
    rest = b""
    limit = time.monotonic() + _START_SECONDS + seconds
    while True:
        now = time.monotonic()
        if now > limit:
            raise FabricError(f"the benchmark did not end; {len(moments)} all_reduces were done")
        while faults and begin is not None and now >= begin + faults[0][0]:
            faults.pop(0)[1](cables)
        due = begin + faults[0][0] if faults and begin is not None else limit
        if not select.select([reports], [], [], max(0.0, due - now))[0]:
            continue
        piece = os.read(reports, 1 << 16)
        if not piece:
            return tuple(moments)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            at, took, right = line.split()
            if right != b"1":
                raise FabricError("an all_reduce gave a wrong result")
            begin = float(at) if begin is None else begin
            moments.append(Moment(float(at) - begin, float(took)))

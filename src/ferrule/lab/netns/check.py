"""Accuracy of emulated cables on this machine: the shaper's own cost, and errors of delays, rates and faults.

All hosts share one clock, so the time of a packet is measured one way: sent in one host, and waited for awake in the
other, by one thread. That leaves out how long sleeping programs take to wake, which a real network does not change.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ferrule.errors import LabError
from ferrule.hardware import pair
from ferrule.lab.netns.faults import parse_fault
from ferrule.lab.netns.lab import Lab

DELAYS = (3e-6, 10e-6, 50e-6, 300e-6, 1e-3, 10e-3)
RATES = (1e9, 2.5e9, 10e9)
FAULTS = ("delay=300us", "loss=1%", "unplug", "replug", "cut", "dark", "stall", "retrain-half", "collapse", "clear")
DELAY_SHARE, DELAY_SECONDS, RATE_SHARE, FAULT_SECONDS = 0.10, 5e-6, 0.05, 10e-3
"""Tolerances: of a delay the larger of the first two, of a rate the third, of the time of a fault the last."""

_PACKETS = 400
_MTU, _SEGMENT, _FRAME = 1500, 1448, 1514
_WARM_SECONDS, _STREAM_SECONDS = 0.3, 1.2
_LOST_SECONDS = 2.0
_PROCESS_SECONDS = 30.0

_SINK = f"""
import socket, sys, time
listener = socket.create_server((sys.argv[1], 4000)); print("ready", flush=True)
stream, buffer, begin, count, first, last = listener.accept()[0], bytearray(1 << 20), time.monotonic(), 0, 0.0, 0.0
while size := stream.recv_into(buffer):
    last = time.monotonic()
    if first: count += size
    elif last - begin > {_WARM_SECONDS}: first = last
print(count * 8 / (last - first) if last > first else 0.0)
"""
_SOURCE = f"""
import socket, sys, time
stream, piece, end = socket.create_connection((sys.argv[1], 4000)), bytes(1 << 18), time.monotonic() + {_STREAM_SECONDS}
while time.monotonic() < end: stream.sendall(piece)
"""


@dataclass(frozen=True)
class Held:
    """One number of a cable: what was ``wanted`` and what was ``measured``, in seconds or bits per second."""

    what: str
    wanted: float
    measured: float
    within: float

    @property
    def true(self) -> bool:
        return abs(self.measured - self.wanted) <= self.within


@dataclass(frozen=True)
class Check:
    """``kernel_delay`` is the way through the kernel's bridge and both hosts, which a cable without delay has too;
    ``added`` what the shaper adds to it when it is told no delay; ``smallest`` the smallest delay that it can hold.
    ``kernel_rate`` and ``shaper_rate``: what one TCP stream gets without a limit. ``faults``: seconds until each acts.
    """

    kernel_delay: float
    added: float
    kernel_rate: float
    shaper_rate: float
    delays: tuple[Held, ...]
    rates: tuple[Held, ...]
    faults: tuple[tuple[str, float], ...]

    @property
    def smallest(self) -> float:
        return max(self.added, 0.0)

    @property
    def true(self) -> bool:
        """Whether everything that this machine can carry is as it should be."""
        carried = [rate for rate in self.rates if rate.wanted <= self.shaper_rate]
        quick = all(seconds <= FAULT_SECONDS for _, seconds in self.faults)
        return quick and all(held.true for held in (*self.delays, *carried))


def check(
    delays: Sequence[float] = DELAYS,
    rates: Sequence[float] = RATES,
    say: Callable[[str], None] = lambda line: None,
) -> Check:
    """Measure it all, in about ten seconds. Nothing else should run. Raises `LabError` where there can be no lab."""
    with Lab(pair(), mtu=_MTU) as lab:
        say("the kernel's own cable")
        kernel_delay = _settled(lab)
        kernel_rate = stream_rate(lab)
    with Lab(pair().shaped(jitter=1e-9), mtu=_MTU) as lab:  # which the shaper carries, with nothing to do
        say("the shaper's own cost")
        added = _settled(lab) - kernel_delay
        shaper_rate = stream_rate(lab)
        lab.cables[0].shape(jitter=0.0)
        held = []
        for delay in delays:
            say(f"a delay of {delay * 1e6:g} µs")
            lab.cables[0].shape(delay=delay)
            measured = one_way(lab, _count(delay)) - kernel_delay
            held.append(Held("delay", delay, measured, max(DELAY_SHARE * delay, DELAY_SECONDS)))
        lab.cables[0].shape(delay=0.0)
        paced = []
        for rate in rates:
            say(f"a rate of {rate / 1e9:g} Gb/s")
            lab.cables[0].shape(rate=rate)
            paced.append(Held("rate", rate, stream_rate(lab) * _FRAME / _SEGMENT, RATE_SHARE * rate))
        say("faults")
        acts = tuple((fault, _acts(lab, fault)) for fault in FAULTS)
    return Check(kernel_delay, added, kernel_rate, shaper_rate, tuple(held), tuple(paced), acts)


def one_way(lab: Lab, packets: int) -> float:
    """The median time of a small datagram from host 0 to host 1, in seconds."""
    with lab.inside(1):
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with lab.inside(0):
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with there, here:
        there.bind((lab.address(1, 0), 0))
        there.setblocking(False)
        here.connect(there.getsockname())
        times = [_one(here, there) for _ in range(packets)]
    return median(times[packets // 10 :])  # the first ones ask who has the address, and find cold caches


def stream_rate(lab: Lab) -> float:
    """Throughput of one TCP stream from host 0 to host 1, in bits per second."""
    address = lab.address(1, 0)
    sink = lab.popen(1, [sys.executable, "-c", _SINK, address], stdout=subprocess.PIPE, text=True)
    assert sink.stdout is not None
    if not sink.stdout.readline():
        raise LabError("the receiver of a measurement did not start")
    source = lab.popen(0, [sys.executable, "-c", _SOURCE, address])
    source.wait(_PROCESS_SECONDS)
    return float(sink.communicate(timeout=_PROCESS_SECONDS)[0])


def _settled(lab: Lab) -> float:
    """`one_way` of a lab whose first packets, from cold caches, are over."""
    return min(one_way(lab, _PACKETS) for _ in range(4))


def _one(here: socket.socket, there: socket.socket) -> float:
    begin = time.perf_counter()
    here.send(b"measure")
    while True:
        try:
            there.recv(64)
            return time.perf_counter() - begin
        except BlockingIOError:
            if time.perf_counter() - begin > _LOST_SECONDS:
                raise LabError("a packet of a measurement was lost") from None


def _count(delay: float) -> int:
    """Fewer of those that take long."""
    return max(40, min(_PACKETS, int(1.0 / delay) if delay else _PACKETS))


def _acts(lab: Lab, fault: str) -> float:
    """Seconds until a fault has acted: after that no packet passes as before it."""
    begin = time.perf_counter()
    parse_fault([fault]).apply(lab.cables[0])
    return time.perf_counter() - begin

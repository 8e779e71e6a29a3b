"""Traffic of the network interfaces now: counters of the kernel, and their change in a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one interface, since it came into being. ``faults``: errors and what was dropped, in both directions."""

    received: int
    sent: int
    faults: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one interface: bytes per second in a time, faults in that time and since the beginning."""

    name: str
    received: float
    sent: float
    faults: int
    all_faults: int


def read_counters() -> dict[str, Counters]:
    """Those of every interface of this host."""
    import psutil  # a few milliseconds, which other commands need not spend

    return {
        name: Counters(one.bytes_recv, one.bytes_sent, one.errin + one.errout + one.dropin + one.dropout)
        for name, one in psutil.net_io_counters(pernic=True, nowrap=True).items()
    }


def traffic(before: Mapping[str, Counters], after: Mapping[str, Counters], seconds: float) -> tuple[Traffic, ...]:
    """Between two readings; an interface that was not there before, or began anew, has none yet."""
    found = []
    for name, now in after.items():
        then = before.get(name, now)
        if now.received < then.received or now.sent < then.sent:
            then = now
        received, sent = (now.received - then.received) / seconds, (now.sent - then.sent) / seconds
        found.append(Traffic(name, received, sent, max(0, now.faults - then.faults), now.faults))
    return tuple(found)

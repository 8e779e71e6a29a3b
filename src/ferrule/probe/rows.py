"""CSV of measured links: a line for each number."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from ferrule.links import DIRECTIONS, Bandwidth, MeasuredPair

COLUMNS = (
    "at",
    "first",
    "first_interface",
    "second",
    "second_interface",
    "transport",
    "what",
    "size",
    "streams",
    "direction",
    "value",
    "unit",
)


def to_csv(pairs: Sequence[MeasuredPair]) -> str:
    """``direction``: ``forth`` is from first to second. ``all``: links at once."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for pair in pairs:
        for link in pair.links:
            first, second = link.ends
            where = (first.host, first.interface, second.host, second.interface, link.transport)
            for one in link.latency:
                for what, seconds in (("min", one.minimum), ("median", one.median), ("p99", one.p99)):
                    writer.writerow(
                        (link.at, *where, f"latency_{what}", one.size, "", "", f"{seconds * 1e6:.3f}", "µs")
                    )
            for bandwidth in link.bandwidth:
                for row in _bandwidth(bandwidth, link.framing):
                    writer.writerow((link.at, *where, *row))
            if link.fault:
                writer.writerow((link.at, *where, f"fault_{link.fault}", "", "", "", 1, ""))
        if pair.together is not None:
            for row in _bandwidth(pair.together, None):
                writer.writerow((pair.at, pair.hosts[0], "all", pair.hosts[1], "all", "tcp", *row))
    return text.getvalue()


def _bandwidth(one: Bandwidth, framing: float | None) -> Iterator[tuple[str | int, ...]]:
    for direction in DIRECTIONS:
        rate = getattr(one, direction) / 1e9
        yield "goodput", "", one.streams, direction, f"{rate:.4f}", "Gb/s"
        if framing is not None:
            yield "wire_rate", "", one.streams, direction, f"{rate * framing:.4f}", "Gb/s"

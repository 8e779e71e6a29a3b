"""What links were measured to do: the numbers, the file in which they are kept, and what they say about a link."""

from ferrule.links.measured.findings import both_ways, examine
from ferrule.links.measured.store import (
    DIRECTIONS,
    Bandwidth,
    Fault,
    Latency,
    LinkEnd,
    MeasuredLink,
    MeasuredLinks,
    MeasuredPair,
)

__all__ = [
    "DIRECTIONS",
    "Bandwidth",
    "Fault",
    "Latency",
    "LinkEnd",
    "MeasuredLink",
    "MeasuredLinks",
    "MeasuredPair",
    "both_ways",
    "examine",
]

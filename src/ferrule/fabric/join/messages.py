"""The messages by which the ranks of a new group agree: tagged structs, decoded by `ControlChannel.receive`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.routing.costs import PairCosts

Epoch = Annotated[bytes, Meta(min_length=16, max_length=16)]
Pair = tuple[int, int]
"""Two ranks, the higher one first."""


class Message(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of the messages of one rank to another."""


class HostReport(Message, frozen=True):
    """A rank to rank 0: where it runs."""

    host: RankHost


class Roster(Message, frozen=True):
    """Rank 0 to all: the ranks of the job. ``silence``: seconds after which a silent rank is lost."""

    epoch: Epoch
    silence: float
    hosts: tuple[RankHost, ...]


class PairRails(Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers of the rails that the higher rank of a pair made, and why there are not more."""

    high: int
    low: int
    rails: tuple[int, ...]
    notes: tuple[str, ...] = ()


class Reached(Message, frozen=True):
    """A rank to rank 0: whom it reached among those below, what it offers for each transport, and which links it knows.

    ``known``: what each possible rail to a rank cost at an earlier start.
    """

    pairs: tuple[PairRails, ...]
    offers: dict[str, Raw]
    known: dict[int, dict[int, Measured]]


class Pairs(Message, frozen=True):
    """Rank 0 to all: which pairs are joined, and what each rank offers. ``measure``: whether to measure links.

    ``known``: by pair, the costs of those links that both of its ranks know.
    """

    pairs: tuple[PairRails, ...]
    offers: tuple[dict[str, Raw], ...]
    measure: bool
    known: tuple[tuple[Pair, dict[int, Measured]], ...]


class Joins(Message, frozen=True):
    """A rank to rank 0: whom each transport joins it with, why one does not, and what links to lower ranks cost."""

    peers: dict[str, tuple[int, ...]]
    reasons: dict[str, str]
    costs: dict[int, Measured]


class Verdict(Message, frozen=True):
    """Rank 0 to all: each rank's reasons, all costs, and for pairs without a link the ranks between."""

    reasons: tuple[dict[str, str], ...]
    costs: PairCosts | None
    routes: tuple[tuple[Pair, tuple[int, ...]], ...]


class Routed(Message, frozen=True):
    """A rank to rank 0: which connections through other ranks failed."""

    failed: tuple[str, ...]


class AllRouted(Message, frozen=True):
    """Rank 0 to all: every rank has its connections through other ranks."""


class ReformAnswer(Message, frozen=True):
    """The leader of a reform: the ranks that make the new group, and a random number that names it.

    ``refusal``: why no group is made with this rank, if none is; ``late``: since time ran out.
    """

    members: tuple[int, ...] = ()
    number: bytes = b""
    refusal: str = ""
    late: bool = False

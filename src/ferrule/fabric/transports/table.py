"""The table of transports."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.fabric.join.control_channel import Deadline
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.transports.protocol import Session, Transport
from ferrule.fabric.transports.shm.transport import ShmTransport
from ferrule.fabric.transports.tcp.transport import TcpTransport
from ferrule.fabric.transports.verbs.transport import VerbsTransport

TRANSPORTS: Sequence[Transport] = (ShmTransport(), VerbsTransport(), TcpTransport())
"""In the order of preference in ``auto``. TCP stays the last: it joins any two ranks, and takes part in any case.

A transport that should be used by its name only looks at ``hosts[rank].transport``, in ``session`` and ``expected``.
"""


def sessions(rank: int, hosts: Sequence[RankHost], deadline: Deadline) -> list[Session]:
    """Of the transports that this rank chose, and of the last one, which also carries what is relayed."""
    choice = hosts[rank].transport
    used = [one for one in TRANSPORTS if choice in ("auto", one.name) or one is TRANSPORTS[-1]]
    return [transport.session(rank, hosts, deadline) for transport in used]


def expected(one: RankHost, other: RankHost) -> bool:
    """Whether a transport of typical cost is all but certain to join two hosts' ranks."""
    return any(transport.typical is not None and transport.expected(one, other) for transport in TRANSPORTS)

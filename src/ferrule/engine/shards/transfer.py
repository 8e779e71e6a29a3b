"""Pieces of weights from the ranks that have the model's files to those that lack them, in rounds of all ranks.

In each round every receiver says which pieces it wants next and from whom; what was asked for in the round before is on
its way meanwhile (one all_to_all), sources read what is asked for now, and receivers check and write what came before.
So every rank always knows what comes, nothing waits for an answer, and a lost rank ends it for all within a second.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ferrule.engine.shards.ledger import DIGEST_BYTES, digest
from ferrule.engine.shards.messages import tell_all
from ferrule.engine.shards.pieces import Piece
from ferrule.engine.shards.store import Store
from ferrule.engine.shards.weight_files import Place, Reader
from ferrule.errors import EngineError
from ferrule.fabric import Group

ROUND_PIECES = 64
ROUND_BYTES = 16 << 20
"""The most that one receiver asks for in a round (a single larger piece is asked for alone)."""
FIRST_BYTES = 1 << 20
LEAST_BYTES = 64 << 10
ROUND_SECONDS = 0.5
"""Receivers ask for more where a round takes less than half of this, and for less where it takes longer: on a slow
cable, too, progress shows and little is lost with a process."""
ROUND_TIMEOUT = 300.0
"""Seconds that a round may take: as long as the slowest disk needs for what one is asked for."""
ATTEMPTS = 4
"""Number of times that a piece is asked for before it is given up."""

Bytes = NDArray[np.uint8]
Done = Callable[[int, int], None]


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Piece ``piece`` from rank ``source`` to rank ``to``."""

    source: int
    to: int
    piece: Piece


class Round(msgspec.Struct):
    """Message of each rank in a round. ``unfinished``: it will ask for more, or has not kept all yet."""

    requests: list[Request]
    unfinished: bool


class Wire:
    """Places of the tensors, by which all ranks understand each other's requests."""

    def __init__(self, places: dict[str, Place]) -> None:
        self.places = places

    def bytes(self, piece: Piece) -> int:
        return piece.bytes(self.places[piece.key].view(piece.dim))


class Receiver:
    """Asks for ``pieces`` from ``sources`` in turn, and keeps in ``store`` what arrives as it was sent."""

    def __init__(
        self, wire: Wire, pieces: Sequence[Piece], sources: Sequence[int], store: Store, on_done: Done
    ) -> None:
        self.wire, self.store, self.on_done = wire, store, on_done
        self.waiting = deque(pieces)
        self.sources = sources
        self.tries: Counter[Piece] = Counter()
        self.total = sum(wire.bytes(piece) for piece in pieces)
        self.done = 0
        self.received = 0
        """Bytes that came, digests and repeated pieces included."""
        self.room = min(FIRST_BYTES, ROUND_BYTES)
        self.since = time.monotonic()

    def next_requests(self, rank: int) -> list[Request]:
        now = time.monotonic()
        seconds, self.since = now - self.since, now
        if seconds < ROUND_SECONDS / 2:
            self.room = min(2 * self.room, ROUND_BYTES)
        elif seconds > ROUND_SECONDS:
            self.room = max(self.room // 2, LEAST_BYTES)
        found: list[Request] = []
        room = self.room
        while self.waiting and len(found) < ROUND_PIECES:
            size = self.wire.bytes(self.waiting[0])
            if found and size > room:
                break
            room -= size
            piece = self.waiting.popleft()
            # Repeated pieces come from another source if there is one.
            source = self.sources[(len(found) + self.tries[piece]) % len(self.sources)]
            found.append(Request(source, rank, piece))
        return found

    def take(self, requests: Sequence[Request], came: Bytes) -> None:
        """Check and keep what ``came`` for ``requests``."""
        self.received += came.nbytes
        at = 0
        for request in sorted(requests, key=lambda each: each.source):
            size = self.wire.bytes(request.piece)
            data, hashed = came[at : at + size], came[at + size : at + size + DIGEST_BYTES].tobytes()
            at += size + DIGEST_BYTES
            if digest(data.data) == hashed:
                self.store.write(request.piece, data.data, hashed)
                self.done += size
            else:
                self._again(request)
        if requests:
            self.on_done(self.done, self.total)

    def _again(self, request: Request) -> None:
        piece = request.piece
        self.tries[piece] += 1
        if self.tries[piece] >= ATTEMPTS:
            raise EngineError(
                f"{piece.key} of {self.wire.places[piece.key].file} arrived damaged from rank {request.source} on rank "
                f"{request.to}, {ATTEMPTS} times in turn; check the cable between them (ferrule doctor) and the "
                "memory of both machines"
            )
        self.waiting.appendleft(piece)


def transfer(
    group: Group, wire: Wire, receiver: Receiver | None, reader: Reader | None, on_sent: Callable[[int], None]
) -> None:
    """Move everything that the receivers of ``group`` ask for; all ranks call it together.

    ``reader``: on ranks that others ask. ``on_sent``: told the bytes sent so far. Raises `ModelError` where a source
    cannot read, `EngineError` where a piece cannot be had whole or kept, and the fabric's errors.
    """
    asked: list[Request] = []  # is on its way in this round
    parcels = _nothing()
    came: tuple[list[Request], Bytes] = ([], _nothing())  # is to be checked
    sent = 0
    while True:
        mine = receiver.next_requests(group.rank) if receiver else []
        unfinished = bool(receiver and (receiver.waiting or any(r.to == group.rank for r in asked) or came[0]))
        told = tell_all(group, Round(mine, unfinished), ROUND_TIMEOUT)
        next_asked = [request for each in told for request in each.requests]
        coming = [request for request in asked if request.to == group.rank]
        counts = [
            [_parcel_bytes(wire, asked, source, to) for source, to in pairs]
            for pairs in (
                [(group.rank, rank) for rank in range(group.size)],
                [(rank, group.rank) for rank in range(group.size)],
            )
        ]
        arriving = np.empty(sum(counts[1]), dtype=np.uint8)
        work = None
        if asked:
            work = group.all_to_all(
                parcels, arriving, send_counts=counts[0], recv_counts=counts[1], timeout=ROUND_TIMEOUT, blocking=False
            )
        next_parcels = _parcels(wire, next_asked, group, reader)
        if receiver:
            receiver.take(*came)
        if work is not None:
            work.wait(ROUND_TIMEOUT)
            sent += sum(counts[0])
            on_sent(sent)
        if not asked and not next_asked and not any(each.unfinished for each in told):
            return
        asked, parcels, came = next_asked, next_parcels, (coming, arriving)


def _nothing() -> Bytes:
    return np.empty(0, dtype=np.uint8)


def _parcel_bytes(wire: Wire, requests: Sequence[Request], source: int, to: int) -> int:
    between = [request for request in requests if (request.source, request.to) == (source, to)]
    return sum(wire.bytes(request.piece) + DIGEST_BYTES for request in between)


def _parcels(wire: Wire, requests: Sequence[Request], group: Group, reader: Reader | None) -> Bytes:
    """Pieces that this rank is to send for ``requests``, in the receivers' order, each with its digest."""
    mine = [request for request in requests if request.source == group.rank]
    if not mine:
        return _nothing()
    assert reader is not None, "only ranks with the files are asked"
    found = np.empty(sum(wire.bytes(request.piece) + DIGEST_BYTES for request in mine), dtype=np.uint8)
    at = 0
    for request in mine:
        data = reader.read(request.piece)
        for part in (data, digest(data)):
            found[at : at + len(part)] = np.frombuffer(part, dtype=np.uint8)
            at += len(part)
    return found

"""Batch announcements: the driver's orders to every rank for the next step, and their wire format.

A batch travels as MessagePack through the fabric: one frame of fixed size holds almost every batch, so that a decode
step costs one small broadcast; what does not fit follows in a second one.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import accumulate

import msgspec
import numpy as np

from ferrule.engine.messages import Hand, Join
from ferrule.errors import EngineError
from ferrule.fabric import Group

FRAME = 4096
"""Bytes of the first frame, `HEADER` included: a decode step of about 200 sequences."""
HEADER = 8
"""Bytes before the batch: its length."""


class Kind(IntEnum):
    RUN = 1
    IDLE = 2
    """Nothing to do; says that the driver is alive."""
    EMBED = 3
    """In place of logits the hidden states of all tokens are wanted, after the last norm."""
    READ = 4
    """Blocks are to be read from disk, and nothing to be computed; comes when no other batch is under way."""
    RECEIVE = 5
    """It is to be told how many blocks have come from the ranks that compute prompts; comes when no other batch is
    under way."""
    HOLD = 6
    """Blocks are to be held for the ranks that go on with the model; nothing else comes behind it."""
    TAKE = 7
    """Blocks are to be taken over from the ranks that had the model; comes before any other that computes."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One sequence's tokens in a batch: it has ``seen`` earlier tokens, brings ``tokens`` new ones, and ``sample``
    says whether a token is chosen by the logits of the last one. ``known``: of a sequence that starts, how many of its
    tokens are known; 0: these, and otherwise. ``scored``: the logits of all of them are wanted. ``blocks``: it starts
    with these, which hold the tokens that it has seen (`cache.prefix`). ``drafted``: so many of the last are guesses;
    the logits of these and of the one before are wanted. What ranks keep of more than the ``seen`` tokens is of guesses
    that were wrong."""

    sequence: int
    seen: int
    tokens: int
    sample: bool
    known: int = 0
    scored: bool = False
    blocks: tuple[int, ...] = ()
    drafted: int = 0

    @property
    def rows(self) -> int:
        """How many of its last tokens' logits are wanted."""
        return self.tokens if self.scored else self.sample + self.drafted


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """An image that has tokens in span number ``span`` of a batch. It begins at token ``begin`` of its sequence and
    covers so many ``tokens``, of which ``rows`` are placeholders. ``size``: bytes of its features, which the driver
    sends for this batch; 0: it has begun in an earlier one."""

    span: int
    begin: int
    tokens: int
    rows: int
    size: int


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """Block ``place`` of a sequence is kept under the number ``block``; where that is kept already, the sequence takes
    it for its own. ``key``: by which it is written to disk; empty: it is not."""

    sequence: int
    place: int
    block: int
    key: bytes = b""


class Read(msgspec.Struct, frozen=True, array_like=True):
    """The block of ``key`` is to be kept as ``block``."""

    block: int
    key: bytes


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """Span number ``span`` of a batch is of a prompt of which other ranks are to have what ``hand`` says."""

    span: int
    hand: Hand


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """What comes of ``request``, from its block ``first`` on, is kept as ``blocks``."""

    request: int
    first: int
    blocks: tuple[int, ...]


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that are to be held: ``blocks``, with their ``keys`` and, of each, the ``parents`` among them (-1: none).
    The first ``needed`` are of sequences that go on. ``leaving``: ranks that end, whose parts others hold; where it is
    empty all make room for others, and hold their own."""

    blocks: tuple[int, ...]
    keys: tuple[bytes, ...]
    parents: tuple[int, ...]
    needed: int
    leaving: tuple[int, ...] = ()


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Tokens of several sequences, end to end, and what is to be done before, in this order: ``closed``, the requests
    of which nothing more is wanted from other ranks, and ``opened``, those that begin to come; ``kept``, then
    ``released``, the sequences whose caches are to be dropped, those of ``spans`` that start with blocks, ``dropped``
    blocks, and ``forgotten``, the keys of those to be deleted on disk. ``adapters``: of each span the number of its
    adapter, from 1, or 0; empty where none has one. ``read``: of `Kind.READ`. ``pictures``: the images that it has
    tokens of. ``axes``: the tokens' positions by axis, three times as many; empty where all are their numbers.
    ``handed``: spans for other ranks; ``counted``: requests, of `Kind.RECEIVE`; ``joined``: a group that the
    ranks join; ``holding``: of `Kind.HOLD`. The tag is the version of the form on the wire."""

    spans: tuple[Span, ...] = ()
    tokens: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    kind: Kind = Kind.RUN
    adapters: tuple[int, ...] = ()
    kept: tuple[Kept, ...] = ()
    dropped: tuple[int, ...] = ()
    forgotten: tuple[bytes, ...] = ()
    read: tuple[Read, ...] = ()
    pictures: tuple[Picture, ...] = ()
    axes: tuple[int, ...] = ()
    handed: tuple[Handed, ...] = ()
    opened: tuple[Opened, ...] = ()
    closed: tuple[int, ...] = ()
    counted: tuple[int, ...] = ()
    joined: Join | None = None
    holding: Holding | None = None

    def logit_rows(self) -> list[int]:
        """Places in ``tokens`` whose logits are wanted, in the order of their spans."""
        rows: list[int] = []
        end = 0
        for span in self.spans:
            end += span.tokens
            rows += range(end - span.rows, end)
        return rows

    def drafts(self) -> dict[int, tuple[int, ...]]:
        """Guesses, by sequence, of those that have some."""
        ends = accumulate(span.tokens for span in self.spans)
        return {
            span.sequence: self.tokens[end - span.drafted : end]
            for span, end in zip(self.spans, ends, strict=True)
            if span.drafted
        }

    def positions(self) -> list[int]:
        return [span.seen + index for span in self.spans for index in range(span.tokens)]


def decode(data: bytes) -> Batch:
    """Raises `EngineError` where ``data`` is no batch."""
    try:
        return msgspec.msgpack.decode(data, type=Batch)
    except msgspec.DecodeError as error:
        raise EngineError(
            f"a rank received a batch that it cannot read ({error}); do all ranks run the same version of Ferrule?"
        ) from None


def announce(group: Group, root: int, batch: Batch) -> None:
    """Send ``batch`` from the driver, rank ``root``, to every other rank."""
    data = np.frombuffer(msgspec.msgpack.encode(batch), dtype=np.uint8)
    frame = np.zeros(FRAME, dtype=np.uint8)
    frame[:HEADER].view(np.int64)[0] = len(data)
    first, rest = data[: FRAME - HEADER], data[FRAME - HEADER :]
    frame[HEADER : HEADER + len(first)] = first
    group.broadcast(frame, root=root)
    if len(rest):
        group.broadcast(rest.copy(), root=root)


def receive(group: Group, root: int, timeout: float) -> Batch:
    """The next batch that the driver announces. Waits at most ``timeout`` seconds; raises the fabric's errors."""
    frame = np.empty(FRAME, dtype=np.uint8)
    group.broadcast(frame, root=root, timeout=timeout)
    length = int(frame[:HEADER].view(np.int64)[0])
    data = frame[HEADER : HEADER + length]
    if length > FRAME - HEADER:
        rest = np.empty(length - (FRAME - HEADER), dtype=np.uint8)
        group.broadcast(rest, root=root, timeout=timeout)
        data = np.concatenate([data, rest])
    return decode(data.tobytes())

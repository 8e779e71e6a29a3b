"""What the driver tells every rank to do next, and its form on the wire.

A batch travels as 32-bit integers through the fabric: one frame of fixed size holds almost every batch, so that a
decode step costs one small broadcast; what does not fit follows in a second one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ferrule.errors import EngineError
from ferrule.fabric import Group

Words = NDArray[np.int32]

FRAME = 1024
"""Words in the first frame (4 KiB): a decode step of about 200 sequences."""
VERSION = 1
HEADER = 5
"""Words before the contents: version, kind, number of spans, of released sequences, of tokens."""


class Kind(IntEnum):
    RUN = 1
    IDLE = 2
    """Nothing to do; says that the driver is alive."""


@dataclass(frozen=True)
class Span:
    """One sequence's tokens in a batch: it has ``seen`` earlier tokens, brings ``tokens`` new ones, and ``sample``
    says whether the logits of the last one are wanted."""

    sequence: int
    seen: int
    tokens: int
    sample: bool


@dataclass(frozen=True)
class Batch:
    """Tokens of several sequences, end to end, and the sequences whose caches are to be dropped first."""

    spans: tuple[Span, ...] = ()
    tokens: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    kind: Kind = Kind.RUN

    def logit_rows(self) -> list[int]:
        """Places in ``tokens`` whose logits are wanted, in the order of their spans."""
        rows, end = [], 0
        for span in self.spans:
            end += span.tokens
            if span.sample:
                rows.append(end - 1)
        return rows

    def positions(self) -> list[int]:
        return [span.seen + index for span in self.spans for index in range(span.tokens)]


def encode(batch: Batch) -> Words:
    words = [VERSION, int(batch.kind), len(batch.spans), len(batch.released), len(batch.tokens)]
    for span in batch.spans:
        words += (span.sequence, span.seen, span.tokens, int(span.sample))
    words += batch.released
    words += batch.tokens
    return np.array(words, dtype=np.int32)


def decode(words: Words) -> Batch:
    """The batch that `encode` made. Raises `EngineError` where the words are not one."""
    numbers = words.tolist()
    version, kind, spans, released, tokens = numbers[:HEADER]
    if version != VERSION or len(numbers) != HEADER + 4 * spans + released + tokens:
        raise EngineError("a rank received a batch that it cannot read; do all ranks run the same version of Ferrule?")
    at = HEADER + 4 * spans
    fields = [numbers[start : start + 4] for start in range(HEADER, at, 4)]
    return Batch(
        spans=tuple(Span(sequence, seen, count, bool(sample)) for sequence, seen, count, sample in fields),
        released=tuple(numbers[at : at + released]),
        tokens=tuple(numbers[at + released :]),
        kind=Kind(kind),
    )


def announce(group: Group, root: int, batch: Batch) -> None:
    """Send ``batch`` from the driver, rank ``root``, to every other rank."""
    words = encode(batch)
    frame = np.zeros(FRAME, dtype=np.int32)
    frame[0] = len(words)
    first = words[: FRAME - 1]
    frame[1 : 1 + len(first)] = first
    group.broadcast(frame, root=root)
    if len(words) > len(first):
        group.broadcast(np.ascontiguousarray(words[len(first) :]), root=root)


def receive(group: Group, root: int, timeout: float) -> Batch:
    """The next batch that the driver announces. Waits at most ``timeout`` seconds; raises the fabric's errors."""
    frame = np.empty(FRAME, dtype=np.int32)
    group.broadcast(frame, root=root, timeout=timeout)
    length = int(frame[0])
    words = frame[1 : 1 + length]
    if length > FRAME - 1:
        rest = np.empty(length - (FRAME - 1), dtype=np.int32)
        group.broadcast(rest, root=root, timeout=timeout)
        words = np.concatenate([frame[1:], rest])
    return decode(words)

"""Small messages between ranks, and large ones that have a length of their own."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np

from ferrule.engine.shards.ledger import DIGEST_BYTES, digest
from ferrule.errors import EngineError
from ferrule.fabric import Group
from ferrule.process import boot_id

T = TypeVar("T")

LIMIT = 1 << 20
"""Bytes of the longest message of `tell_all`."""
TELL_TIMEOUT = 300.0
"""Seconds for ranks that come to it by ways of different length, such as loading."""


def tell_all(group: Group, value: T, timeout: float) -> list[T]:
    """All-gather of a value of each rank, in rank order; all ranks call it with a value of the same type, which JSON
    can hold.

    Raises `EngineError` where a rank says something else.
    """
    mine = np.frombuffer(msgspec.json.encode(value), dtype=np.uint8)
    longest = np.array([len(mine)], dtype=np.int64)
    group.all_reduce(longest, op="max", timeout=timeout)
    if longest[0] > LIMIT:
        raise EngineError(f"a rank told the others {longest[0]:,} bytes, more than {LIMIT:,}")
    padded = np.full(int(longest[0]), ord(" "), dtype=np.uint8)
    padded[: len(mine)] = mine
    rows = group.all_gather(padded, timeout=timeout).reshape(group.size, -1)
    try:
        return [msgspec.json.decode(row.tobytes(), type=type(value)) for row in rows]
    except msgspec.ValidationError as error:
        raise EngineError(f"what a rank told the others cannot be read: {error}") from None


def sharing(world: Group, memory: str) -> int:
    """Number of ranks of ``world`` that have tensors in the ``memory`` of this machine, this one included; all ranks
    call it."""
    mine = f"{boot_id()} {memory}"
    return tell_all(world, mine, TELL_TIMEOUT).count(mine)


def send_bytes(group: Group, data: bytes, dst: int, timeout: float) -> None:
    """To a rank that calls `receive_bytes`."""
    group.send(np.array([len(data)], dtype=np.int64), dst, timeout=timeout)
    group.send(np.frombuffer(data + digest(data), dtype=np.uint8), dst, timeout=timeout)


def receive_bytes(group: Group, src: int, timeout: float) -> bytes:
    length = np.zeros(1, dtype=np.int64)
    group.recv(length, src, timeout=timeout)
    found = np.empty(int(length[0]) + DIGEST_BYTES, dtype=np.uint8)
    group.recv(found, src, timeout=timeout)
    data, hashed = found[:-DIGEST_BYTES].tobytes(), found[-DIGEST_BYTES:].tobytes()
    if digest(data) != hashed:
        raise EngineError(f"what rank {src} sent of the model's configuration arrived damaged; start again")
    return data

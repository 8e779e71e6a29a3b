"""Small messages between ranks, and large ones that have a length of their own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ferrule.engine.shards.ledger import DIGEST_BYTES, digest
from ferrule.errors import EngineError
from ferrule.fabric import Group


def tell_all(group: Group, value: Any, timeout: float) -> list[Any]:
    """What every rank says, in rank order; anything that JSON can hold. All ranks call it."""
    mine = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    longest = np.array([len(mine)], dtype=np.int64)
    group.all_reduce(longest, op="max", timeout=timeout)
    padded = np.full(int(longest[0]), ord(" "), dtype=np.uint8)
    padded[: len(mine)] = mine
    rows = group.all_gather(padded, timeout=timeout).reshape(group.size, -1)
    return [json.loads(row.tobytes()) for row in rows]


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

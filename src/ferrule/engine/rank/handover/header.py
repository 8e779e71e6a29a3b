"""Heads of a hand-over's messages: eight numbers, behind which the bytes come that they tell of."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ferrule.errors import FabricError
from ferrule.fabric import Group

FIELDS = 8


class Kind(IntEnum):
    PART = 1
    """Blocks of some heads of a layer follow."""
    END = 2
    """All of the prompt was sent; the same back: all of it has come."""
    ALIVE = 3
    """There is nothing to send."""


class Header(NamedTuple):
    """``blocks`` blocks of ``request`` from block ``place`` on: of a ``layer`` the key/value heads from ``first`` on,
    in ``size`` bytes."""

    kind: Kind
    request: int = 0
    layer: int = 0
    first: int = 0
    place: int = 0
    blocks: int = 0
    size: int = 0

    def send(self, group: Group, to: int, timeout: float) -> None:
        group.send(np.array([*self, 0], dtype=np.int64), to, timeout=timeout)

    @classmethod
    def receive(cls, group: Group, source: int, timeout: float) -> Header:
        numbers = np.zeros(FIELDS, dtype=np.int64)
        group.recv(numbers, source, timeout=timeout)
        return cls.of(numbers.tolist())

    @classmethod
    def of(cls, numbers: list[int]) -> Header:
        """Raises `FabricError` where they are no header."""
        if numbers[0] not in Kind.__members__.values() or min(numbers) < 0:
            raise FabricError(f"a hand-over's message begins with {numbers}; do all ranks run the same version?")
        return cls(Kind(numbers[0]), *numbers[1 : FIELDS - 1])

"""The arrays that a rank works on, made once per cell."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from ferrule.bench.fabric.operations import OPERATIONS
from ferrule.bench.fabric.rank import Task
from ferrule.fabric import DTYPE_BYTES


class Arrays:
    """Input and output arrays of a task; kept until a task needs others. ``make(count, dtype)`` makes one."""

    def __init__(self, ranks: int, make: Callable[[int, str], Any]) -> None:
        self._ranks = ranks
        self._make = make
        self._key: tuple[str, int, str] | None = None
        self._made: tuple[Any, Any] = (None, None)

    def pair(self, task: Task) -> tuple[Any, Any]:
        """Source and target; the same array where the operation works in place."""
        if self._key != (task.op, task.count, task.dtype):
            self._made = None, None  # free the memory first
            operation = OPERATIONS[task.op]
            source = self._of(task, operation.gives)
            self._made = source, source if operation.gets is None else self._of(task, operation.gets)
            self._key = task.op, task.count, task.dtype
        return self._made

    def _of(self, task: Task, extent: str) -> Any:
        return self._make(task.count * (self._ranks if extent == "whole" else 1), task.dtype)


def zeros(count: int, dtype: str) -> Any:
    """A torch tensor where torch is installed, else a numpy array."""
    array = np.empty(count * DTYPE_BYTES[dtype], dtype=np.uint8)
    array.fill(0)  # np.zeros would read from one page for all, until it is written
    if find_spec("torch") is not None:
        import torch

        return torch.from_numpy(array).view(getattr(torch, dtype))
    if dtype == "bfloat16":
        raise TypeError("numpy has no bfloat16, and torch is not installed")
    return array.view(dtype)

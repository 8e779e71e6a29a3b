"""Host memory for a device whose driver does not know by itself which copies still use it."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class LentMemory:
    """Tensors whose memory, when the last view of it is gone, is kept until all that the device was given is done.

    ``record``: makes an event after that, with ``query()`` for whether it has happened.
    """

    def __init__(self, record: Callable[[], Any]) -> None:
        self._record = record
        self._dropped: deque[tuple[Any, np.ndarray[Any, Any]]] = deque()
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        with self._lock:
            while self._dropped and self._dropped[0][0].query():
                self._dropped.popleft()
        size = math.prod(shape) * dtype.itemsize
        memory = np.empty(max(1, size), np.uint8)
        lent = memory[:]  # held by the tensor's storage, so that it ends when the last view of it does
        weakref.finalize(lent, self._drop, memory).atexit = False
        return torch.from_numpy(lent)[:size].view(dtype).reshape(shape)

    def _drop(self, memory: np.ndarray[Any, Any]) -> None:
        self._dropped.append((self._record(), memory))

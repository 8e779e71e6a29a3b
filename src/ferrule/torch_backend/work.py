"""Work objects that torch gets for an operation: already done, or under way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

from ferrule.errors import FerruleError
from ferrule.fabric.coalesce import Coalesced, when_all
from ferrule.fabric.work import Work as FabricWork
from ferrule.torch_backend.tensors import Finish

Future = torch.futures.Future
_OWN_STREAMS = ("cuda", "xpu")
"""Devices on which each thread has a current stream: a future has what waits for it ordered after its own thread's."""


class Done(Work):
    """An operation that ended before its call returned, and whose result is in the caller's tensors."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        return []

    def synchronize(self) -> None:
        pass

    def get_future(self) -> Future[list[Tensor]]:
        future: Future[list[Tensor]] = Future()
        future.set_result([])
        return future


class Part:
    """Part of an operation that is under way in the fabric, and what brings its results home."""

    def __init__(self, operation: FabricWork[Any] | Coalesced, finishes: Sequence[Finish]) -> None:
        self.operation = operation
        self._finishes = finishes
        self.homes: list[Finish] = []
        """Copies to a device, which know whether they were started already."""
        self._lock = threading.Lock()

    def wait(self, seconds: float | None) -> None:
        self.operation.wait(seconds)
        with self._lock:  # several threads may wait; the results come home once
            finishes, self._finishes = self._finishes, ()
            for finish in finishes:
                finish()
            for home in self.homes:  # in the order of the waiting thread's stream
                home()


class Pending(Work):
    """Parts that are under way. ``result``: the tensors that hold what came out. ``source``: from whom, if received."""

    def __init__(self, parts: Sequence[Part], result: list[Tensor], source: int = -1) -> None:
        super().__init__()
        self.parts = parts
        self._result = result
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raises what the operation raised, or `FabricTimeout` when ``timeout`` passes first."""
        seconds = timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
        for part in self.parts:
            part.wait(seconds)
        return True

    def bring_home(self, home: Finish, result: list[Tensor] | None = None) -> None:
        """Have every wait end with ``home``, a copy to a device. ``result``: the tensors there, if these are others."""
        self.parts[-1].homes.append(home)
        self._result = self._result if result is None else result

    def is_completed(self) -> bool:
        """Whether it is done; the result can be used then, as if it had been waited for."""
        done = all(part.operation.done() for part in self.parts)
        if done:
            self._failure()
        return done

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        return self._failure() if self.is_completed() else None

    def _failure(self) -> Exception | None:
        try:
            self.wait()
        except (FerruleError, TypeError, ValueError) as error:
            return error
        return None

    def result(self) -> list[Tensor]:
        self.wait()
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        """Of a message from any rank only its operation knows it."""
        operation = self.parts[0].operation
        found = operation.source if isinstance(operation, FabricWork) else None
        return self._source if found is None else found

    def get_future(self) -> Future[list[Tensor]]:
        """A future of the result. Unless it is there already, it comes from a thread of its own: what is chained to
        the future with ``then`` may take its time, and may use the group."""
        devices = {t.device for t in self._result if t.device.type in _OWN_STREAMS}
        future: Future[list[Tensor]] = Future(devices=list(devices) or None)
        if self.is_completed():
            self._fulfil(future)
        else:
            fulfil = threading.Thread(target=self._fulfil, args=(future,), name="ferrule future")
            when_all([part.operation for part in self.parts], fulfil.start)
        return future

    def _fulfil(self, future: Future[list[Tensor]]) -> None:
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001 (the future hands it on)
            future.set_exception(error)  # type: ignore[arg-type]  # torch's own annotation is wrong
        else:
            future.set_result(self._result)

"""An operation that goes on while the caller does something else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from ferrule import _native
from ferrule._native import STATUS
from ferrule.errors import FabricTimeout

Result = TypeVar("Result")
_PENDING: int = STATUS["PENDING"]


class Work(Generic[Result]):
    """Made by operations that are called with ``blocking=False``.

    The arrays belong to the operation until it is done: neither change nor, for its results, read them. They are
    kept alive even when the `Work` is not.
    """

    def __init__(
        self,
        native: _native.Work,
        rank: int,
        fail: Callable[[int], NoReturn],
        result: Result,
        arrays: tuple[object, ...],
    ) -> None:
        self._native = native
        self._rank = rank
        self._fail = fail
        self._result = result
        # The native core holds the callback, and the callback the arrays, until the operation is done.
        native.then(lambda: arrays and None)

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for the result that the blocking call would have returned; raises what it would have raised.

        ``timeout`` in seconds: `FabricTimeout` when it is not done by then; the operation goes on, until its own
        deadline at the latest.
        """
        status = self._native.wait(math.inf if timeout is None else timeout)
        if status == _PENDING:
            raise FabricTimeout(f"Timed out on rank {self._rank}: not done after {timeout:g} s; the operation goes on")
        if status:
            self._fail(status)
        return self._result

    @property
    def source(self) -> int | None:
        """The rank from which a `recv` from any rank got its message; None until then, and for all else."""
        rank = self._native.source
        return None if rank < 0 else rank

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        return self._native.wait(0) != _PENDING

    def then(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when it is done, well or not: at once if it is, else from a thread of the group.

        It must be quick, and must not wait for other operations of the group.
        """
        self._native.then(callback)

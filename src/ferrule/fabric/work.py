"""An operation that goes on while the caller does something else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from ferrule import _native
from ferrule._native import STATUS
from ferrule.errors import FabricTimeout

if TYPE_CHECKING:
    from ferrule.fabric.group import Group

Result = TypeVar("Result")
_PENDING: int = STATUS["PENDING"]


class Work(Generic[Result]):
    """Made by operations that are called with ``blocking=False``.

    The arrays belong to the operation until it is done: neither change nor, for its results, read them. They are
    kept alive even when the `Work` is not.
    """

    def __init__(self, group: Group, native: _native.Work | None, result: Result, arrays: tuple[object, ...]) -> None:
        self._group = group
        self._native = native
        self._result = result
        self._arrays = arrays
        if native is not None:
            # The native core holds the callback, and the callback the arrays, until the operation is done.
            native.then(lambda: arrays and None)

    def wait(self, timeout: float | None = None) -> Result:
        """What the blocking call would have returned; raises what it would have raised.

        ``timeout`` in seconds: `FabricTimeout` when it is not done by then; the operation goes on, until its own
        deadline at the latest.
        """
        if self._native is not None:
            status = self._native.wait(math.inf if timeout is None else timeout)
            if status == _PENDING:
                raise FabricTimeout(
                    f"rank {self._group.rank}: the operation is not done after {timeout:g} s; it goes on"
                )
            if status:
                self._group._fail(status)
        return self._result

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        return self._native is None or self._native.wait(0) != _PENDING

    def then(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when it is done, well or not: at once if it is, else from a thread of the group.

        It must be quick, and must not wait for other operations of the group.
        """
        if self._native is None:
            callback()
        else:
            self._native.then(callback)

"""Several operations that run together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from ferrule._native import OPS, Operation
from ferrule.errors import FabricError
from ferrule.fabric.core import Core
from ferrule.fabric.work import Work

_MESSAGES = (OPS["send"], OPS["recv"])


class Coalesced:
    """Operations called inside ``with group.coalesce():``. Started when the block ends, unless it ends by an error."""

    def __init__(self, core: Core, timeout: float | None, blocking: bool) -> None:
        self._core = core
        self._timeout = timeout
        self._blocking = blocking
        self._streams: tuple[list[Operation], list[Operation]] = ([], [])
        self._arrays: list[object] = []
        self._works: list[Work[Any]] = []

    def _add(self, operation: Operation, arrays: tuple[object, ...]) -> None:
        self._streams[operation.op in _MESSAGES].append(operation)
        self._arrays += arrays

    def __enter__(self) -> Self:
        if self._core.collect is not None:
            raise FabricError("this group is already inside a coalesce() block")
        self._core.collect = self._add
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._core.collect = None
        if error is not None:
            return
        streams = [operations for operations in self._streams if operations]
        if self._blocking and len(streams) == 1:
            self._core.check(self._core.native.run(streams[0], self._core.seconds(self._timeout)))
            return
        for operations in streams:
            self._works.append(self._core.start(operations, None, tuple(self._arrays), self._timeout))
        if self._blocking:
            self.wait()

    def wait(self, timeout: float | None = None) -> None:
        """Until all of them are done. Raises what they raise; ``timeout`` in seconds as in `Work.wait`."""
        for work in self._works:
            work.wait(timeout)

    def then(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when all of them are done, as `Work.then` does."""
        when_all(self._works, callback)

    def done(self) -> bool:
        return all(work.done() for work in self._works)


def when_all(works: Sequence[Work[Any] | Coalesced], callback: Callable[[], object]) -> None:
    """Call ``callback`` when all ``works`` are done, as `Work.then` does."""
    if works:
        works[0].then(lambda: when_all(works[1:], callback))
    else:
        callback()

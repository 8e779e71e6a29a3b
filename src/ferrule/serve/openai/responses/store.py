"""Responses that are kept in memory for the requests that follow, bounded in time, number and bytes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ferrule.serve.http.errors import ApiError
from ferrule.serve.openai.responses.objects import ResponseBody

SECONDS: Final = 24 * 3600.0
MOST_RESPONSES: Final = 1024
MOST_BYTES: Final = 64 * 2**20
"""Bounds of what is kept. Of a long talk each response shares the items before it with the others."""

Item = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Segment:
    """Items that one request gave or got, with their bytes as JSON: shared by all responses that follow."""

    items: Sequence[Item]
    size: int


def segment(items: Sequence[Item]) -> Segment:
    return Segment(tuple(items), len(msgspec.json.encode(items)))


@dataclass(frozen=True)
class Kept:
    """A response with ``before``, the items that went before its request, ``given``, its input, and ``made``, its
    output. ``told``: what the response itself takes, such as its tools. ``owner``: whoever may see it."""

    owner: str
    body: ResponseBody
    before: tuple[Segment, ...]
    given: Segment
    made: Segment
    told: Segment

    @classmethod
    def new(cls, owner: str, body: ResponseBody, before: tuple[Segment, ...], given: Sequence[Item]) -> Kept:
        told = Segment((), len(msgspec.json.encode(body)))
        made = [item for item in msgspec.to_builtins(body.output) if not _is_cut_call(item)]
        return cls(owner, body, before, segment(given), segment(made), told)

    @property
    def history(self) -> tuple[Segment, ...]:
        return (*self.before, self.given, self.made)

    @property
    def input(self) -> list[Item]:
        return [item for each in (*self.before, self.given) for item in each.items]


def _is_cut_call(item: Item) -> bool:
    """Whether ``item`` is a call whose arguments are no JSON, since its answer was cut: templates take objects."""
    return (item["type"], item["status"]) == ("function_call", "incomplete")


class Responses:
    """Responses by their ids. What one owner keeps another does not find; what was used last goes last."""

    def __init__(
        self,
        *,
        seconds: float = SECONDS,
        most: int = MOST_RESPONSES,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._most, self._most_bytes, self._clock = seconds, most, most_bytes, clock
        self._kept: OrderedDict[str, tuple[float, Kept]] = OrderedDict()
        self._holders: dict[Segment, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, response: Kept) -> None:
        self._kept[response.body.id] = self._clock() + self._seconds, response
        for each in (*response.history, response.told):
            self._holders[each] = self._holders.get(each, 0) + 1
            self.bytes += each.size if self._holders[each] == 1 else 0
        while len(self._kept) > self._most or self.bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, name: str, owner: str, *, param: str | None = None) -> Kept:
        """Raises `ApiError` 404 where it is not, or no more, or another's. ``param``: the field that names it."""
        until, response = self._kept.get(name, (0.0, None))
        if response is not None and until <= self._clock():
            self._drop(name)
            response = None
        if response is None or response.owner != owner:
            said, code = ("Previous response", "previous_response_not_found") if param else ("Response", "not_found")
            raise ApiError(
                404, f"{said} with id {name!r} not found: it was never kept, or is gone", code=code, param=param
            )
        self._kept[name] = self._clock() + self._seconds, response
        self._kept.move_to_end(name)
        return response

    def delete(self, name: str, owner: str) -> None:
        """Raises `ApiError` as `get` does. Responses that followed it keep what they need."""
        self.get(name, owner)
        self._drop(name)

    def item(self, name: str, owner: str) -> Item | None:
        """An item of any of the owner's responses."""
        for until, response in reversed(self._kept.values()):
            if response.owner == owner and until > self._clock():
                for each in (response.given, response.made):
                    found = next((item for item in each.items if item["id"] == name), None)
                    if found is not None:
                        return found
        return None

    def _drop(self, name: str) -> None:
        _, response = self._kept.pop(name)
        for each in (*response.history, response.told):
            self._holders[each] -= 1
            if not self._holders[each]:
                del self._holders[each]
                self.bytes -= each.size

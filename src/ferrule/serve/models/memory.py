"""Memory for models: whether one more has room, and which others make it. Pure but for the look at what is free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ferrule.errors import ModelUnavailable
from ferrule.process.memory import memory_free
from ferrule.serve.models.offer import Need
from ferrule.units import format_bytes

RETRY_SECONDS = 10


@dataclass(frozen=True)
class Held:
    """A model in memory. ``last_used``: when its last request was answered. ``stays``: why it is not unloaded now;
    None: it can be. ``busy``: that this ends with its requests."""

    name: str
    need: Need
    last_used: float
    stays: str | None = None
    busy: bool = False


class NoRoomError(ModelUnavailable):
    """A model does not fit beside those that are ``held``. ``shortage``: what is missing."""

    def __init__(self, shortage: str, held: Sequence[Held], others: int = 0) -> None:
        stay = [f"{each.name!r} ({format_bytes(each.need.total)}{_because(each)})" for each in held]
        if others:
            stay.append("another model" if others == 1 else f"{others} other models")
        are = "is" if len(held) + others == 1 else "are"
        beside = f"; in memory {are} {', '.join(stay)}" if stay else ", with no other model loaded"
        super().__init__(shortage + beside, retry_after=RETRY_SECONDS)
        self.shortage, self.held = shortage, tuple(held)

    def told(self, may_know: Callable[[str], bool]) -> NoRoomError:
        """For a caller who may know the names of some models only."""
        known = [each for each in self.held if may_know(each.name)]
        return NoRoomError(self.shortage, known, len(self.held) - len(known))


class Room(Protocol):
    """Memory for the models of an address."""

    async def shortage(self, name: str, need: Need, held: Sequence[Held]) -> str | None:
        """Why there is no room for the model ``name`` beside those that are ``held``; None where there is."""
        ...

    async def first_out(self, name: str, need: Need, held: Sequence[Held], *, also_busy: bool = False) -> Held | None:
        """The least recently used model that is unloaded first so that there will be room, if there will be once all
        that can be are; None where not. ``also_busy``: count those that have requests now. To be asked where there is a
        `shortage`."""
        ...


def movable(held: Sequence[Held], *, also_busy: bool) -> list[Held]:
    """Those that can be unloaded, the least recently used one first."""
    out = [each for each in held if each.stays is None or (also_busy and each.busy)]
    return sorted(out, key=lambda each: each.last_used)


class Memory:
    """`Room` of this machine. ``limit``: bytes that all models together may take; None: what the machine has.
    ``free``: bytes that are free on it now."""

    def __init__(self, limit: int | None = None, free: Callable[[], int] = lambda: memory_free()[0]) -> None:
        self.limit, self._free = limit, free

    def room(self, need: Need, held: Sequence[Held]) -> int:
        """Bytes for one more model of this ``need``. What caches of others may still take is not free. Memory of
        accelerators is not measured: there only the limit counts."""
        rooms = [] if self.limit is None else [self.limit - sum(each.need.total for each in held)]
        if need.on_host:
            rooms.append(self._free() - sum(each.need.cache for each in held if each.need.on_host))
        return max(0, min(rooms, default=need.total))

    async def shortage(self, name: str, need: Need, held: Sequence[Held]) -> str | None:
        room = self.room(need, held)
        if room >= need.total:
            return None
        limit = "" if self.limit is None else f" of the limit of {format_bytes(self.limit)} (--memory-limit)"
        return (
            f"{name!r} does not fit into memory now: it needs {format_bytes(need.total)}, and "
            f"{format_bytes(room)}{limit} is free"
        )

    async def first_out(self, name: str, need: Need, held: Sequence[Held], *, also_busy: bool = False) -> Held | None:
        out = movable(held, also_busy=also_busy)
        # What lies in another memory makes room under the limit only.
        made = sum(each.need.total for each in out if each.need.on_host == need.on_host or self.limit is not None)
        return next(iter(out), None) if self.room(need, held) + made >= need.total else None


def _because(held: Held) -> str:
    return f", {held.stays}" if held.stays else ""

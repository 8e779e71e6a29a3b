"""Memory for models: whether one more has room, and which others make it. Pure but for the look at what is free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ferrule.process.memory import memory_free
from ferrule.serve.models.offer import Need
from ferrule.units import format_bytes


@dataclass(frozen=True)
class Held:
    """A model in memory. ``last_used``: when its last request was answered. ``stays``: why it is not unloaded now;
    None: it can be. ``busy``: that this ends with its requests."""

    name: str
    need: Need
    last_used: float
    stays: str | None = None
    busy: bool = False


class Memory:
    """``limit``: bytes that all models together may take; None: what the machine has. ``free``: bytes that are free on
    it now."""

    def __init__(self, limit: int | None = None, free: Callable[[], int] = lambda: memory_free()[0]) -> None:
        self.limit, self._free = limit, free

    def room(self, need: Need, held: Sequence[Held]) -> int:
        """Bytes for one more model of this ``need``. What caches of others may still take is not free. Memory of
        accelerators is not measured: there only the limit counts."""
        rooms = [] if self.limit is None else [self.limit - sum(each.need.total for each in held)]
        if need.on_host:
            rooms.append(self._free() - sum(each.need.cache for each in held if each.need.on_host))
        return max(0, min(rooms, default=need.total))

    def first_out(self, need: Need, held: Sequence[Held], *, also_busy: bool = False) -> Held | None:
        """The least recently used model that can be unloaded so that there will be room, if there will be once all of
        them are; None where not. ``also_busy``: count those that have requests now. To be asked where the ``room`` is
        less than the ``need``."""
        out = [each for each in held if each.stays is None or (also_busy and each.busy)]
        # What lies in another memory makes room under the limit only.
        made = sum(each.need.total for each in out if each.need.on_host == need.on_host or self.limit is not None)
        if self.room(need, held) + made < need.total:
            return None
        return min(out, key=lambda each: each.last_used, default=None)

    def refusal(self, name: str, need: Need, held: Sequence[Held]) -> str:
        """Why there is no room for the model ``name``."""
        limit = "" if self.limit is None else f" of the limit of {format_bytes(self.limit)} (--memory-limit)"
        text = f"{name!r} does not fit into memory now: it needs {format_bytes(need.total)}, and "
        text += f"{format_bytes(self.room(need, held))}{limit} is free"
        if not held:
            return f"{text}, with no other model loaded"
        stay = ", ".join(
            f"{each.name!r} ({format_bytes(each.need.total)}{f', {each.stays}' if each.stays else ''})" for each in held
        )
        return f"{text}; in memory are {stay}"

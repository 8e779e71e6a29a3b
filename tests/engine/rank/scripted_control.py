"""A driver's parent that gives it orders one look at a time, and keeps what it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ferrule.engine.messages import Event, NewToken, Order, Tokens


class ScriptedControl:
    """`Control`. ``coming``: orders that the driver finds when it looks next; ``events``: what it has said."""

    def __init__(self, orders: Iterable[Order] = ()) -> None:
        self.coming, self.events = [*orders], list[Event]()

    def orders(self, _: float) -> list[Order]:
        found, self.coming = self.coming, []
        return found

    def send(self, event: Event) -> None:
        self.events.append(event)

    def tokens(self) -> Iterator[NewToken]:
        """All that were told, of any request."""
        for event in self.events:
            if isinstance(event, Tokens):
                yield from event.tokens

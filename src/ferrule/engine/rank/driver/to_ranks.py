"""What ranks are told with batches: whose caches they drop, and what becomes of blocks of prompts."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import structs

from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.cache.prefix import Orders, PrefixIndex


@dataclass
class OrdersToRanks:
    """``released``: sequences whose caches are to be dropped; ``closed``: as of `Batch`."""

    prefixes: PrefixIndex
    released: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    def on(self, batch: Batch) -> Batch:
        """``batch`` with all that the ranks are to do before it."""
        orders = self.prefixes.orders()
        return structs.replace(
            batch,
            released=tuple(self.released),
            closed=tuple(self.closed),
            kept=orders.kept,
            dropped=orders.dropped,
            forgotten=orders.forgotten,
        )

    def told(self, batch: Batch) -> None:
        """The ranks are told ``batch``."""
        del self.released[: len(batch.released)]
        del self.closed[: len(batch.closed)]
        self.prefixes.told(Orders(batch.kept, batch.dropped, batch.forgotten))

    def with_batch(self, batch: Batch) -> Batch:
        """As `on`; the ranks are told it."""
        made = self.on(batch)
        self.told(made)
        return made

"""The driver's part in a move of the model: which blocks are held for others, and what of theirs is known here then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrule.engine.messages import CachesHeld, Hold, Join, Listen, Listening, TakenOver, TakeOver
from ferrule.engine.rank.batch import Batch, Holding, Kind
from ferrule.engine.rank.cache.prefix import BLOCK, Block, PrefixIndex
from ferrule.engine.rank.driver.scheduler import Scheduler
from ferrule.engine.rank.driver.stored import shared_keys
from ferrule.engine.rank.handover.exchange import FIRST_BLOCK, Exchange
from ferrule.engine.rank.handover.keeper import Keeper


@dataclass
class Moving:
    """``order``: has all ranks do what a batch says, which computes nothing. ``asked``: what is to be held, as soon as
    no batch is under way. ``stopped``: nothing is computed any more."""

    keeper: Keeper
    scheduler: Scheduler
    prefixes: PrefixIndex
    order: Callable[[Batch], None]
    asked: Hold | None = None
    stopped: bool = False

    def obey(self, order: Listen | Hold | TakeOver) -> None:
        match order:
            case Listen() if not self.keeper.refusal:
                self.keeper.report(Listening(self.keeper.listen(beyond=order.beyond)))
            case Hold() if not self.keeper.refusal:
                self.asked = order
            case Hold():
                self.keeper.report(CachesHeld(reason=self.keeper.refusal))
            case TakeOver() if not self.keeper.refusal:
                self._take_over(order.join)
            case _:
                self.keeper.report(TakenOver(reason=self.keeper.refusal))

    def hold(self, hold: Hold) -> None:
        """No batch is under way."""
        self.stopped, found = True, _to_hold(self.scheduler, self.prefixes)
        blocks, needed = found
        places = {block.key: place for place, block in enumerate(blocks)}
        parents = [-1 if each.parent is None else places[each.parent.key] for each in blocks]
        holding = Holding(
            tuple(each.number for each in blocks), tuple(places), tuple(parents), needed, hold.leaving
        )  # fmt: skip
        batch = self.scheduler.idle_batch(Batch(kind=Kind.HOLD, holding=holding))
        self.order(batch)
        self.keeper.obey(batch)

    def _take_over(self, join: Join) -> None:
        batch = self.scheduler.idle_batch(Batch(kind=Kind.TAKE, joined=join))
        self.order(batch)
        exchange = self.keeper.obey(batch)
        assert exchange is not None
        self.keeper.report(learn(self.prefixes, exchange))


def learn(prefixes: PrefixIndex, exchange: Exchange) -> TakenOver:
    """Note what has come, and say so."""
    done, needed = exchange.done, min(exchange.done, exchange.needed)
    prefixes.have_moved(FIRST_BLOCK, exchange.keys[:done], exchange.parents[:done])
    return TakenOver(
        BLOCK * exchange.needed,
        BLOCK * needed,
        BLOCK * (done - needed),
        exchange.size,
        exchange.seconds,
        BLOCK * needed * exchange.token_seconds,
        exchange.reason,
    )


def _to_hold(scheduler: Scheduler, prefixes: PrefixIndex) -> tuple[list[Block], int]:
    """Blocks, each behind its parent: those of sequences first, of which there are so many, then those that are worth
    most."""
    found: dict[bytes, Block] = {}

    def take(block: Block | None) -> None:
        chain = []
        while block is not None and block.key not in found:
            chain.append(block)
            block = block.parent
        found.update((each.key, each) for each in reversed(chain))

    for sequence in scheduler.by_identity.values():
        for block in sequence.held.blocks or prefixes.match(shared_keys(prefixes, sequence)):
            take(block)
    needed = len(found)
    for block in sorted(prefixes.blocks.values(), key=lambda each: each.worth, reverse=True):
        take(block)
    return list(found.values()), needed

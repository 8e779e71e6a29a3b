"""Order in which sequences begin, and their prompts are computed. Pure.

Priorities come first, then fair shares of queues (`Shares`). Of a queue's prompts the one with least left comes next
(shortest remaining processing time, Schrage 1968), with aging: each token of a later prompt that is computed meanwhile
counts for a longer one as if it were one of its own. So later ones get no more ahead of it than it has tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ferrule.engine.rank import sequence
from ferrule.engine.rank.driver.shares import Shares


def prompts_in_order(running: Iterable[sequence.Sequence], shares: Shares) -> list[sequence.Sequence]:
    """Those of ``running``, in the order of their places, that bring more than an answer does."""
    return sorted(
        (each for each in running if not each.answers),
        key=lambda each: (each.priority, shares.of(each.queue), each.remaining - each.overtaken),
    )


def overtake(prompts: Iterable[sequence.Sequence], computed: Mapping[int, int]) -> None:
    """Note that so many tokens of some of ``prompts``, by their identity, are ``computed`` before the others."""
    ahead = 0
    for each in sorted(prompts, key=lambda each: -each.identity):
        if each.identity in computed:
            ahead += computed[each.identity]
        elif not each.pending:
            each.overtaken += ahead


def next_to_begin(
    waiting: Sequence[sequence.Sequence], running: Sequence[sequence.Sequence], shares: Shares, room: int
) -> sequence.Sequence | None:
    """The next of ``waiting`` that may run beside ``running``: it has ``room`` for so many tokens. None where there is
    none, or where room is to become free for one that has been overtaken enough. What was preempted goes on first."""
    ahead = Counter[str]()  # what is to be computed of those that run counts as if it were
    for each in running:
        ahead[each.queue] += each.remaining
    order = sorted(
        waiting,
        key=lambda each: (each.priority, not each.preempted, shares.of(each.queue) + ahead[each.queue], each.identity),
    )
    for at, each in enumerate(order):
        if len(each.tokens) < room or not running:
            for passed in order[:at]:
                passed.overtaken += len(each.tokens)
            return each
        if each.preempted or each.overtaken >= len(each.tokens):
            return None
    return None

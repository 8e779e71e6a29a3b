"""Order in which prompts are computed: shortest remaining first, with aging. Pure.

A short prompt does not wait behind a long one (shortest remaining processing time, Schrage 1968). Each token of a later
prompt that is computed meanwhile counts for the long one as if it were one of its own: so later ones get no more ahead
of it than it has tokens, and it takes at most twice as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ferrule.engine.rank.sequence import Sequence


def prompts_in_order(running: Iterable[Sequence]) -> list[Sequence]:
    """Those of ``running``, in the order of their arrival, that bring more than a token."""
    return sorted((each for each in running if each.step > 1), key=lambda each: each.remaining - each.overtaken)


def overtake(prompts: Iterable[Sequence], computed: Mapping[int, int]) -> None:
    """Note that so many tokens of some of ``prompts``, by their identity, are ``computed`` before the others."""
    ahead = 0
    for each in sorted(prompts, key=lambda each: -each.identity):
        if each.identity in computed:
            ahead += computed[each.identity]
        elif not each.pending:
            each.overtaken += ahead

"""Choice of a replica for a request: the least loaded one, or one that lately had a prompt which begins alike. Pure.

A replica's cost is the sequences that it would then have, divided by its speed, less what it may know of the prompt.
So requests with one long beginning (a system prompt, a chat that goes on) stay together until that replica has
`KNOWN_WORTH` sequences more than another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

BLOCK = 64
"""Tokens that are looked at together; what is shorter is nobody's."""
MOST_BLOCKS = 1 << 14
"""Blocks that are remembered of each replica: the last million tokens."""
KNOWN_WORTH = 2.0
"""Sequences more than on the least loaded replica that a request puts up with where its whole prompt is known."""


@dataclass(frozen=True)
class Load:
    """``open``: sequences that run or wait there. ``speed``: relative to the other replicas. ``known``: the part of the
    prompt that it had lately, 0 to 1. ``last``: number of the request for which it was chosen last."""

    open: int = 0
    speed: float = 1.0
    known: float = 0.0
    last: int = 0


def choose(loads: Mapping[int, Load]) -> int:
    """Replica with the least cost, of equal ones that which was chosen longest ago. ``loads``: of those that can be
    had, by number."""
    fastest = max(load.speed for load in loads.values())

    def cost(number: int) -> tuple[float, int, int]:
        load = loads[number]
        return (load.open + 1) * fastest / load.speed - KNOWN_WORTH * load.known, load.last, number

    return min(loads, key=cost)


def chain(prompt: Sequence[int], salt: Hashable = None) -> tuple[int, ...]:
    """A hash of each whole block of ``prompt`` together with all before it. ``salt``: what else the states of its
    tokens depend on, such as an adapter."""
    found = []
    last = hash(salt)
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        last = hash((last, *prompt[end - BLOCK : end]))
        found.append(last)
    return tuple(found)


class KnownPrefixes:
    """Beginnings of the prompts that one replica had lately; at most ``most`` blocks."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._most = most
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def known(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks``, of `chain`, it had."""
        return next((at for at, block in enumerate(blocks) if block not in self._blocks), len(blocks))

    def note(self, blocks: Sequence[int]) -> None:
        """It has them now. Ends are forgotten before their beginnings, without which they are worth nothing."""
        for block in reversed(blocks[: self._most]):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def forget(self) -> None:
        """It was lost, with what it knew."""
        self._blocks.clear()


class Router:
    """Open sequences and known prompts of ``replicas``, by number."""

    def __init__(self, replicas: int) -> None:
        self.open = [0] * replicas
        self._prefixes = [KnownPrefixes() for _ in range(replicas)]
        self._last = [0] * replicas
        self._count = 0

    def opened(self, prompt: Sequence[int], speeds: Mapping[int, float], salt: Hashable = None) -> int:
        """The replica that is to have a request from now on until `closed`, of those in ``speeds``."""
        blocks = chain(prompt, salt)
        loads = {
            number: Load(
                self.open[number],
                speed,
                self._prefixes[number].known(blocks) * BLOCK / max(1, len(prompt)),
                self._last[number],
            )
            for number, speed in speeds.items()
        }
        chosen = choose(loads)
        self._count += 1
        self._last[chosen] = self._count
        self._prefixes[chosen].note(blocks)
        self.open[chosen] += 1
        return chosen

    def closed(self, replica: int) -> None:
        """A request has ended there, or goes on elsewhere."""
        self.open[replica] -= 1

    def lost(self, replica: int) -> None:
        """Its ranks are gone, and what they kept."""
        self._prefixes[replica].forget()

"""Plan of the faults of a served model: they follow from a seed and the server's number alone."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Fault = Literal["kill", "stop", "pause", "block", "two", "again", "leave", "rail", "dark rail", "cut"]

LOSSES: tuple[Fault, ...] = ("kill", "stop", "block")
"""Of one rank: the others keep their processes."""
COMES_BACK: tuple[Fault, ...] = (*LOSSES, "two", "again", "cut")
"""After which the model comes back; after others it never was away."""
_CABLES: tuple[Fault, ...] = ("rail", "dark rail", "cut")
_OFTEN: dict[Fault, int] = {
    "kill": 8,
    "stop": 5,
    "pause": 3,
    "block": 4,
    "two": 2,
    "again": 2,
    "leave": 2,
    "rail": 3,
    "dark rail": 2,
    "cut": 2,
}
_DEATHS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
MOST_ALIKE = 5
"""Deaths by one signal at one server: after another one within five minutes a model is given up (`restart_policy`)."""

CABLES = 2
"""Switches, to each of which every host has a cable."""


@dataclass(frozen=True)
class Setup:
    """A served model. ``model``: "demo", or a mixture. ``options``: of `EngineOptions`. ``hosts``: whether its ranks
    are on emulated hosts, where these can be."""

    name: str
    model: Literal["demo", "mixture"]
    ranks: int
    options: dict[str, Any] = field(default_factory=dict)
    hosts: bool = False

    @property
    def reference(self) -> dict[str, Any]:
        """Options of one rank without features, by which the right answers are found."""
        cache = self.options.get("kv_cache", "auto")
        return {"dtype": "float32", "threads": 1, "prefix_cache": False, "kv_cache": cache}


FEATURES: dict[str, Any] = {
    "dtype": "float32",
    "threads": 1,
    "standby": True,
    "prefix_disk": 1 << 26,
    "speculate": "ngram:4",
    "batch_tokens": 128,
}
"""In float32, where rounding does not decide between tokens. Prompts are computed in pieces of a few dozen tokens."""
SETUPS = (
    Setup("uneven", "demo", 3, {**FEATURES, "tensor": 3, "shares": (4.0, 2.0, 1.0)}, hosts=True),
    Setup("mixture", "mixture", 2, {**FEATURES, "tensor": 2, "expert_parallel": True}),
    Setup("quantised", "demo", 4, {**FEATURES, "tensor": 2, "pipeline": 2, "kv_cache": "int8"}, hosts=True),
)


@dataclass(frozen=True)
class Strike:
    """``victim``: the rank that it hits, ``other``: another one. ``death``: the signal of one that dies. ``delay``:
    seconds from when requests run to the fault. ``cable``: which one is hit."""

    number: int
    fault: Fault
    victim: int
    other: int
    death: signal.Signals
    delay: float
    cable: int

    def __str__(self) -> str:
        return f"fault {self.number}: {self.fault} of rank {self.victim} ({self.death.name}, {self.other})"


def plan_strikes(
    seed: int, server: int, count: int, ranks: int, *, cables: bool, only: Sequence[Fault] = ()
) -> list[Strike]:
    """``cables``: whether there are any. ``only``: these, in turn."""
    chooser = random.Random(f"{seed}/{server}")
    often = {fault: times for fault, times in _OFTEN.items() if cables or fault not in _CABLES}
    deaths = [death for death in _DEATHS for _ in range(MOST_ALIKE)]
    found = []
    for number in range(count):
        fault = only[number % len(only)] if only else chooser.choices(list(often), list(often.values()))[0]
        victim, other = chooser.sample(range(ranks), 2)
        death = chooser.choice(deaths)  # of which there are more than a server sees faults
        if fault in ("kill", "block", "two", "again"):
            deaths.remove(death)
        delay = chooser.choice([0.0, chooser.uniform(0, 0.2), chooser.uniform(0, 1.0)])
        found.append(Strike(number, fault, victim, other, death, delay, chooser.randrange(CABLES)))
    return found

"""Plan of a round of chaos: it follows from a seed and the round's number alone, so any can be replayed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Fault = Literal[
    "none",
    "kill",
    "pause",
    "stop",
    "cut",
    "dark",
    "rail",
    "slow",
    "garbage",
    "replay",
    "impostor",
    "wrong key",
    "twin",
]
Moment = Literal["join", "busy", "idle"]

HOSTS = 5

CABLES = 2
"""Switches, to each of which every host has a cable."""

# How often each comes up, and when it may strike. A rank that never turns up is only noticed at a deadline, so that
# these rounds take long.
_FAULTS: dict[Fault, tuple[int, tuple[Moment, ...]]] = {
    "none": (4, ("busy",)),
    "kill": (30, ("join", "busy", "busy", "idle", "idle")),
    "pause": (8, ("join", "busy", "idle")),
    "stop": (6, ("busy", "idle")),
    "cut": (4, ("busy", "idle")),
    "dark": (4, ("busy", "idle")),
    "rail": (6, ("busy", "idle")),
    "slow": (8, ("join", "busy")),
    "garbage": (14, ("join", "busy", "idle")),
    "replay": (10, ("join",)),
    "impostor": (8, ("join",)),
    "wrong key": (5, ("join",)),
    "twin": (7, ("join",)),
}


@dataclass(frozen=True)
class Plan:
    """``hosts[rank]``: where each rank runs. ``victim``: the rank that the fault hits, or whose name is abused.

    ``late``: the rank that comes last to the rendezvous, by ``late_by`` seconds, so that strangers find it open.
    ``delay``: seconds from the beginning of ``moment`` to the fault. ``work``: the seed of what the group does.
    ``cable``: the one that a "rail" loses, and whether it is dark then or cut. ``reform``: those that are left go on.
    """

    number: int
    hosts: tuple[int, ...]
    fault: Fault
    moment: Moment
    victim: int
    delay: float
    late: int
    late_by: float
    work: int
    rate: float
    cable: int
    dark: bool
    reform: bool

    @property
    def size(self) -> int:
        return len(self.hosts)

    def __str__(self) -> str:
        where = ",".join(map(str, self.hosts))
        return f"round {self.number}: {self.fault} of rank {self.victim} ({self.moment}), ranks on hosts {where}"


def plan_round(seed: int, number: int) -> Plan:
    chooser = random.Random(f"{seed}/{number}")
    size = chooser.randint(2, 5)
    fault = chooser.choices(list(_FAULTS), [weight for weight, _ in _FAULTS.values()])[0]
    moment = chooser.choice(_FAULTS[fault][1])
    if fault in ("cut", "dark", "slow", "rail"):
        hosts = chooser.sample(range(HOSTS), size)  # a cable that matters
    else:
        hosts = chooser.choice(
            [
                [chooser.randrange(HOSTS)] * size,
                chooser.sample(range(HOSTS), size),
                [chooser.randrange(HOSTS) for _ in range(size)],
            ]
        )
    # Rank 0 leads the rendezvous: it can be killed, but no other can take its name.
    named = fault in ("impostor", "wrong key", "twin")
    victim = chooser.randrange(1 if named else 0, size)
    opens = moment == "join" and fault in ("garbage", "replay", "impostor", "twin")
    return Plan(
        number=number,
        hosts=tuple(hosts),
        fault=fault,
        moment=moment,
        victim=victim,
        delay=chooser.choice([0.0, chooser.uniform(0, 0.02), chooser.uniform(0, 0.1)]),
        late=victim if fault == "impostor" else chooser.randrange(1, size),
        late_by=chooser.uniform(0.05, 0.2) if opens else 0.0,
        work=chooser.randrange(1 << 32),
        rate=10 ** chooser.uniform(7.3, 8.5),
        cable=chooser.randrange(CABLES),
        dark=chooser.random() < 0.5,
        reform=fault in ("kill", "stop", "cut", "dark") and moment != "join" and chooser.random() < 0.5,
    )

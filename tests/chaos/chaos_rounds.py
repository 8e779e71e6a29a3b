"""Play a round and say what was wrong with how it went."""

from __future__ import annotations

import re
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from chaos_arena import Arena, Hang, Player
from chaos_plan import HOSTS, Plan, plan_round
from chaos_strangers import Eavesdropper, Stranger, wait_until

JOIN_SECONDS = 20.0
"""Time limit of a rendezvous on a machine that is busy with other things."""
NOTICE_SECONDS = 3.0
"""By then a lost rank must be known to all. It should take a hundredth of that; `Chaos.noticed` has the times."""
WORK_SECONDS = 20.0
"""By then a group that nothing hurt, or whose cable became slow, must have come to its end."""
CLEAN_SECONDS = 5.0
LOSSES = ("kill", "stop", "cut", "dark")

TIMEOUT = 10.0
JOIN_TIMEOUT = 2.5
TWIN_TIMEOUT = 5.0
"""FERRULE_TIMEOUT of a round: short where only a deadline can end it."""

PAUSE_SECONDS = 0.15
REFORM_SECONDS = 12.0
BREATH_SECONDS = 0.02
PORT = 7700

Event = tuple[float, Callable[[], None]]
Outcome = dict[str, Any]


@dataclass
class Chaos:
    """Results of all rounds. ``faults``: how many of each kind. ``noticed``: seconds from a loss to each report.

    ``starved``: rounds in which a rank got no processor for so long that it was lost by right.
    """

    seed: int
    faults: dict[str, int] = field(default_factory=dict)
    noticed: list[float] = field(default_factory=list)
    visits: int = 0
    starved: int = 0
    violations: list[str] = field(default_factory=list)
    overheard: deque[bytes] = field(default_factory=lambda: deque(maxlen=30))
    key: str = field(default_factory=lambda: secrets.token_hex(32))

    def play(self, arena: Arena, number: int) -> None:
        plan = plan_round(self.seed, number)
        self.faults[plan.fault] = self.faults.get(plan.fault, 0) + 1
        replay = f"FERRULE_CHAOS_SEED={self.seed} FERRULE_CHAOS_ROUND={number} pytest -m soak tests/chaos/test_chaos.py"
        self.violations += [f"{plan}\n  {problem}\n  again: {replay}" for problem in Round(self, arena, plan).play()]

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        times = sorted(self.noticed) or [0.0]
        return (
            f"chaos seed {self.seed}: {faults}; losses were noticed after {times[len(times) // 2] * 1e3:.1f} ms "
            f"(median), {times[-1] * 1e3:.1f} ms (longest); strangers came {self.visits} times; "
            f"{self.starved} rounds were void because this machine was too busy; "
            f"{len(self.violations)} violations"
        )


class Round:
    """One group from its rendezvous to its end, and the fault that hits it."""

    def __init__(self, chaos: Chaos, arena: Arena, plan: Plan) -> None:
        self.chaos = chaos
        self.arena = arena
        self.plan = plan
        hosts = [*plan.hosts, plan.hosts[plan.victim]]
        *self.ranks, self.double = arena.cast(hosts)
        self.problems: list[str] = []
        self.struck = 0.0

    def play(self) -> list[str]:
        try:
            with ExitStack() as stack:
                stranger = self._stranger()
                if stranger is not None:
                    stack.enter_context(stranger)
                self._judge(*self._go_through())
            if stranger is not None:
                self.chaos.visits += stranger.visits
            self._look_for_leaks()
        finally:
            self.ranks[self.plan.victim].signal(signal.SIGCONT)
            for cable in self.arena.lab.cables:
                cable.restore()
                cable.limit(None)
        return self.problems

    def _go_through(self) -> tuple[list[Outcome], Outcome | None]:
        plan = self.plan
        early = [rank for rank in range(plan.size) if rank != plan.late]
        timeline: list[Event] = [(0.0, lambda: self._tell(early)), (plan.late_by, lambda: self._tell([plan.late]))]
        if plan.fault in ("impostor", "twin"):
            key = {"FERRULE_KEY": secrets.token_hex(32)} if plan.fault == "impostor" else {}
            timeline.append((0.0, lambda: self.double.play(plan.number, **self._order(plan.victim, key))))
        if plan.moment == "join":
            self._run([*timeline, *self._strike()])
        else:
            self._run(timeline)
            reached = "joined" if plan.moment == "busy" else "idle"
            events = [self._look(rank, reached) for rank in range(plan.size)]
            if any(event != reached for event in events):
                self.problems.append(f"not all ranks were {reached} before anything had happened to them: {events}")
            self._run(self._strike())
        return self._outcomes()

    def _run(self, timeline: list[Event]) -> None:
        begin = time.monotonic()
        for offset, act in sorted(timeline, key=lambda event: event[0]):
            wait_until(begin + offset)
            act()

    def _tell(self, ranks: list[int]) -> None:
        for rank in ranks:
            wrong = self.plan.fault == "wrong key" and rank == self.plan.victim
            self.ranks[rank].play(
                self.plan.number, **self._order(rank, {"FERRULE_KEY": secrets.token_hex(32)} if wrong else {})
            )

    def _order(self, rank: int, changed: dict[str, str]) -> dict[str, Any]:
        plan = self.plan
        timeout = TIMEOUT
        if plan.moment == "join":
            timeout = {"kill": JOIN_TIMEOUT, "wrong key": JOIN_TIMEOUT, "twin": TWIN_TIMEOUT}.get(plan.fault, TIMEOUT)
        env = {
            "FERRULE_RANK": str(rank),
            "FERRULE_WORLD_SIZE": str(plan.size),
            # The port changes so that no rank meets a rank of the round before.
            "FERRULE_ADDRESS": f"{self.arena.address(plan.hosts[0])}:{PORT + plan.number % 1000}",
            "FERRULE_KEY": self.chaos.key,
            "FERRULE_TIMEOUT": str(timeout),
        }
        return {
            "env": env | changed,
            "work": plan.work,
            "largest": 20_000 if plan.fault == "slow" else 150_000,
            "idle_after": 2 if plan.moment == "idle" else -1,
            "reform": plan.reform and rank != plan.victim,
        }

    def _stranger(self) -> Stranger | None:
        if self.plan.fault == "garbage":
            return Stranger(self.arena, self.plan)
        if self.plan.fault == "replay":
            return Eavesdropper(self.arena, self.plan, self.chaos.overheard)
        return None

    def _strike(self) -> list[Event]:
        """Actions of the fault, each with its time."""
        plan, victim = self.plan, self.ranks[self.plan.victim]
        cables = self.arena.lab.cables
        rail = cables[plan.cable]
        acts: dict[str, Callable[[], object]] = {
            "kill": victim.kill,
            "pause": lambda: victim.signal(signal.SIGSTOP),
            "stop": lambda: victim.signal(signal.SIGSTOP),
            "cut": lambda: [cable.cut(victim.host) for cable in cables],
            "dark": lambda: [cable.blackhole(victim.host) for cable in cables],
            "slow": lambda: [cable.limit(plan.rate, sender=victim.host) for cable in cables],
            "rail": lambda: rail.blackhole(victim.host) if plan.dark else rail.cut(victim.host),
        }

        def strike() -> None:
            self.struck = time.monotonic()
            if plan.fault in acts:
                acts[plan.fault]()

        timeline = [(plan.delay, strike)]
        if plan.fault == "pause":
            timeline.append((plan.delay + PAUSE_SECONDS, lambda: victim.signal(signal.SIGCONT)))
        return timeline

    def _outcomes(self) -> tuple[list[Outcome], Outcome | None]:
        """Outcome for every rank, and for the one that abuses a rank's name. Rank 0 is told to come to an end."""
        plan = self.plan
        wait_until(time.monotonic() + BREATH_SECONDS)
        if plan.moment == "idle":
            self.struck = max(self.struck, time.monotonic())
            for rank in self.ranks:
                rank.tell("resume")
        limit = WORK_SECONDS
        if plan.fault in LOSSES:
            limit = NOTICE_SECONDS
            limit += JOIN_TIMEOUT + NOTICE_SECONDS if plan.moment == "join" else REFORM_SECONDS if plan.reform else 0.0
        elif plan.moment != "join" or self._first_joined():
            self.ranks[0].tell("finish")
        outcomes: list[Outcome] = [{}] * plan.size
        # One that was stopped goes on when the others have given it up.
        for rank in sorted(range(plan.size), key=lambda rank: plan.fault == "stop" and rank == plan.victim):
            if plan.fault == "stop" and rank == plan.victim:
                self.ranks[rank].signal(signal.SIGCONT)
            outcomes[rank] = self._hear(rank, ["outcome"], limit)
        double = None
        if plan.fault in ("impostor", "twin"):
            double = self._ask(self.double, "the double", ["outcome"], limit)
        return outcomes, double

    def _first_joined(self) -> bool:
        """Whether rank 0 came out of the rendezvous well."""
        return self._look(0, "joined") == "joined"

    def _look(self, rank: int, reached: str) -> str:
        """That, or "outcome" when it came to its end before."""
        report = self._hear(rank, [reached, "outcome"], JOIN_SECONDS)
        if report["event"] == "outcome" and self.ranks[rank].alive:
            self.ranks[rank].unhear(report)
        return str(report["event"])

    def _hear(self, rank: int, events: list[str], seconds: float) -> Outcome:
        if not self.ranks[rank].alive:
            return {"event": "outcome", "error": "killed", "text": "", "rank": None}
        return self._ask(self.ranks[rank], f"rank {rank}", events, seconds)

    def _ask(self, player: Player, name: str, events: list[str], seconds: float) -> Outcome:
        try:
            return player.expect(events, time.monotonic() + seconds)
        except Hang as hang:
            self.problems.append(f"{name}: {hang} within {seconds:g} s\n{player.trace() if player.alive else ''}")
            player.kill()
            return {"event": "outcome", "error": "hang", "text": "", "rank": None}

    def _judge(self, outcomes: list[Outcome], double: Outcome | None) -> None:
        plan = self.plan
        wrong = [f"rank {rank}: {one['text']}" for rank, one in enumerate(outcomes) if one["error"] == "WrongResult"]
        self.problems += wrong
        slept = {rank for rank, one in enumerate(outcomes) if "got no processor" in one.get("text", "")}
        if slept - ({plan.victim} if plan.fault in ("stop", "pause") else set()):
            self.chaos.starved += 1
            return
        others = [rank for rank in range(plan.size) if rank != plan.victim]
        if plan.fault in LOSSES:
            for rank in others:
                self._must_blame(rank, outcomes[rank])
                if plan.reform and outcomes[rank].get("reformed") != len(others):
                    self.problems.append(f"rank {rank} found no new group of {len(others)}: {outcomes[rank]}")
                if plan.moment != "join" and "noticed" in outcomes[rank]:
                    self.chaos.noticed.append(outcomes[rank]["noticed"] - self.struck)
            self._must_fail(plan.victim, outcomes[plan.victim])
        elif plan.fault == "wrong key" or (plan.fault == "twin" and outcomes[0]["error"] is not None):
            for rank in others:
                self._must_blame(rank, outcomes[rank])
            self._must_fail(plan.victim, outcomes[plan.victim])
        elif plan.fault == "twin":
            for rank in others:
                self._must_do_well(rank, outcomes[rank])
            if double is None or (double["error"] is None) == (outcomes[plan.victim]["error"] is None):
                self.problems.append(f"of two that claim to be rank {plan.victim} one must get in")
        else:
            for rank in range(plan.size):
                self._must_do_well(rank, outcomes[rank])
            if double is not None and double["error"] is None:
                self.problems.append("one with a wrong key was let in")

    def _must_do_well(self, rank: int, outcome: Outcome) -> None:
        if outcome["error"] not in (None, "hang"):
            self.problems.append(f"rank {rank} failed: {outcome['error']}: {outcome['text']}")

    def _must_fail(self, rank: int, outcome: Outcome) -> None:
        if outcome["error"] in (None, "WrongResult"):
            self.problems.append(f"rank {rank} did not notice anything: {outcome}")

    def _must_blame(self, rank: int, outcome: Outcome) -> None:
        """The rank at fault must be named: by the error's field, or where it has none by its words."""
        self._must_fail(rank, outcome)
        if self.plan.moment == "join" and "cannot reach rank 0" in outcome["text"]:
            return  # rank 0 had given up before this rank was there to be told why
        named = (
            {outcome["rank"]}
            if outcome["rank"] is not None
            else {*map(int, re.findall(r"rank (\d+)", outcome["text"]))}
        )
        if outcome["error"] not in (None, "hang", "WrongResult") and self.plan.victim not in named:
            self.problems.append(f"rank {rank} blames another: {outcome['error']}: {outcome['text']}")

    def _look_for_leaks(self) -> None:
        for rank, player in enumerate([*self.ranks, self.double]):
            if not player.alive and not player.gone(CLEAN_SECONDS):
                self.problems.append(f"rank {rank} was killed and is still there")
            if player.alive and (rank < self.plan.size or self.plan.fault in ("impostor", "twin")):
                leaks = self._ask(player, f"rank {rank}", ["clean"], CLEAN_SECONDS).get("leaks")
                if leaks:
                    self.problems.append(f"rank {rank} keeps {', '.join(leaks)}")
        if segments := self.arena.segments():
            self.problems.append(f"segments are left: {segments}")
        for host in range(HOSTS):
            if listening := self.arena.listening(host):
                self.problems.append(f"a process still listens on host {host}: {listening}")
        if strangers := self.arena.strangers():
            self.problems.append(f"processes are left: {strangers}")

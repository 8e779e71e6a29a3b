"""Play the faults of one served model under load, and say what was wrong with how it went on."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import httpx
from served_load import Load
from served_plan import CABLES, COMES_BACK, LOSSES, Strike
from served_server import Breath, Served

BACK_SECONDS = 180.0
"""By then the model is back; on a quiet machine after one or two."""
CALM_SECONDS = 240.0
"""By then all requests that a fault has met are answered."""
PAUSE_SECONDS = 0.3
APART_SECONDS = 15.0
"""For which a host has no cable: longer than ranks wait for each other."""
STARVED_SECONDS = 0.4
"""Without a processor, by which this machine loses ranks by itself."""


@dataclass
class Played:
    """Results. ``back``: seconds from each loss of one rank until the model was back; ``token``: until a client had the
    next token. ``starved``: faults after which the ranks' processes say nothing, since this machine was too busy."""

    faults: dict[str, int] = field(default_factory=dict)
    done: int = 0
    left: int = 0
    refused: int = 0
    back: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)
    damaged: int = 0
    starved: int = 0
    problems: list[str] = field(default_factory=list)

    def joined(self, other: Played) -> Played:
        kinds = self.faults.keys() | other.faults.keys()
        faults = {kind: self.faults.get(kind, 0) + other.faults.get(kind, 0) for kind in kinds}
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)[1:]}
        return Played(faults, **sums)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        back, token = sorted(self.back) or [0.0], sorted(self.token) or [0.0]
        return (
            f"{sum(self.faults.values())} faults ({faults}): {self.done} answers right, {self.left} clients left, "
            f"{self.refused} asked again, "
            f"{self.damaged} blocks damaged; after the loss of one rank the model was back after "
            f"{back[len(back) // 2]:.1f} s (median; longest {back[-1]:.1f}), the next token came after "
            f"{token[len(token) // 2]:.1f} s ({token[-1]:.1f}); {self.starved} faults while the machine was too busy "
            f"to tell which processes stay; {len(self.problems)} problems"
        )


@dataclass
class Player:
    """``name``: of the setup, for people. ``say``: is told of each fault."""

    name: str
    served: Served
    load: Load
    played: Played
    seed: int
    say: Callable[[str], None] = field(default=lambda _: None)

    async def play(self, strikes: list[Strike], clients: int) -> None:
        running = asyncio.create_task(self.load.run(clients))
        try:
            for strike in strikes:
                before, begun = len(self.load.wrong), time.monotonic()
                try:
                    await self._until(lambda: len(self.load.open) == clients, CALM_SECONDS, "clients ask")
                    await asyncio.sleep(strike.delay)
                    with Breath() as breath:
                        await self._strike(strike, breath)
                    met = set(self.load.open)
                    await self._until(lambda: not met & set(self.load.open), CALM_SECONDS, "what it met is answered")  # noqa: B023
                except TimeoutError as error:
                    self._problem(strike, f"{error}; {await self._state()}")
                for wrong in self.load.wrong[before:]:
                    self._problem(strike, wrong)
                seconds, problems = time.monotonic() - begun, len(self.played.problems)
                self.say(f"{self.name}: {strike}: {seconds:.1f} s, {problems} problems so far")
                if self.served.process.poll() is not None or (await self._health()).get("status") == "failed":
                    self._problem(strike, "the model has failed")
                    return
        finally:
            self.load.over = True
            await asyncio.wait_for(running, 2 * CALM_SECONDS)
            self.played.done += self.load.done
            self.played.left += self.load.left
            self.played.refused += self.load.refused

    async def _strike(self, strike: Strike, breath: Breath) -> None:
        self.played.faults[strike.fault] = self.played.faults.get(strike.fault, 0) + 1
        before, ranks = await self._health(), self.served.ranks()
        struck = time.monotonic()
        await self._hit(strike, ranks)
        if strike.fault not in COMES_BACK:
            if strike.fault == "leave":
                await self._all_left()
            await self._stays(strike, ranks, before, breath)
            return
        await self._until_back(before["recoveries"])
        if strike.fault in LOSSES:
            back = time.monotonic()
            self.played.back.append(back - struck)
            await self._until(lambda: self.load.last_token > back, CALM_SECONDS, "the next token")
            self.played.token.append(self.load.last_token - struck)
            await self._kept(strike, ranks, breath)

    async def _hit(self, strike: Strike, ranks: dict[int, Any]) -> None:
        victim, other = ranks[strike.victim], ranks[strike.other]
        match strike.fault:
            case "kill":
                victim.send_signal(strike.death)
            case "stop":
                victim.send_signal(signal.SIGSTOP)
            case "pause":
                victim.send_signal(signal.SIGSTOP)
                await asyncio.sleep(PAUSE_SECONDS)
                victim.send_signal(signal.SIGCONT)
            case "block":  # which is read when the ranks have lost what they had in memory
                self.played.damaged += self.served.damage_blocks(strike.other, random.Random(strike.number))
                victim.send_signal(strike.death)
            case "two":
                victim.send_signal(strike.death)
                other.send_signal(signal.SIGSTOP)
            case "again":  # while the model comes back
                victim.send_signal(strike.death)
                await asyncio.sleep(strike.delay)
                other.send_signal(signal.SIGKILL if strike.death != signal.SIGKILL else signal.SIGABRT)
            case "leave":
                self.load.leave |= set(self.load.open)
            case "rail" | "dark rail":
                self.served.cable("cut" if strike.fault == "rail" else "blackhole", strike.cable, strike.victim)
                await asyncio.sleep(1.0 + strike.delay)
                self.served.cable("restore", strike.cable, strike.victim)
            case "cut":
                for cable in range(CABLES):
                    self.served.cable("cut", cable, strike.victim)
                await asyncio.sleep(strike.delay * APART_SECONDS)
                for cable in range(CABLES):
                    self.served.cable("restore", cable, strike.victim)

    async def _until_back(self, recoveries: int) -> None:
        deadline = time.monotonic() + BACK_SECONDS
        while True:
            health = await self._health()
            if health.get("status") == "ok" and health["recoveries"] > recoveries:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not back within {BACK_SECONDS:g} s")
            await asyncio.sleep(0.02)

    async def _all_left(self) -> None:
        """Those that were told to leave, and of each its sequence."""
        await self._until(lambda: not self.load.leave & set(self.load.open), CALM_SECONDS, "the clients have left")
        self.load.leave.clear()

    async def _stays(self, strike: Strike, ranks: dict[int, Any], before: dict[str, Any], breath: Breath) -> None:
        health = await self._health()
        stayed = {rank: process.pid for rank, process in self.served.ranks().items()}
        if health["recoveries"] == before["recoveries"]:
            if stayed != {rank: process.pid for rank, process in ranks.items()}:
                self._problem(strike, f"ranks had the processes {ranks} and have {stayed}, without a recovery")
        elif breath.longest > STARVED_SECONDS:
            self.played.starved += 1
        else:
            self._problem(strike, f"the model was away: {health['last_recovery']}")

    async def _kept(self, strike: Strike, ranks: dict[int, Any], breath: Breath) -> None:
        """The others have their processes, and the server says so."""
        health, now = await self._health(), self.served.ranks()
        others = sorted(set(ranks) - {strike.victim})
        stayed = [rank for rank in sorted(ranks) if rank in now and now[rank].pid == ranks[rank].pid]
        if stayed == others == health["last_recovery"]["kept"]:
            return
        if breath.longest > STARVED_SECONDS:
            self.played.starved += 1
        else:
            self._problem(strike, f"ranks {stayed} have their processes, of {others}; {health['last_recovery']}")

    async def _health(self) -> dict[str, Any]:
        try:
            return dict((await self.load.client.get("/health")).json())
        except httpx.HTTPError as error:
            return {"status": f"no answer: {error!r}", "recoveries": -1}

    async def _state(self) -> str:
        return f"health {await self._health()}, ranks {self.served.ranks()}, log {self.served.log[-3000:]}"

    @staticmethod
    async def _until(condition: Callable[[], object], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds:g} s")
            await asyncio.sleep(0.02)

    def _problem(self, strike: Strike, problem: str) -> None:
        self.played.problems.append(f"{self.name}, seed {self.seed}, {strike}: {problem}")

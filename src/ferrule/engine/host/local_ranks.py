"""Rank processes of this machine, also in the hosts of a lab: their starter and their planner."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.engine.host.placement import Deployment, Loss
from ferrule.engine.messages import Start, encode
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.errors import ModelUnavailable
from ferrule.launch import LocalLauncher

if TYPE_CHECKING:
    from ferrule.lab import Lab

LOG_TAIL = 5
"""Lines of a dead rank's output that its error quotes."""
ANSWER_SECONDS = 0.5
"""How long a host of a lab may take to answer before it counts as cut off."""
Kind = tuple[int, int, bool | None]
"""What ranks are told at their start: how many they are, their threads, and whether they encrypt; the rest comes over
their control connections."""
CLOSED_PORT = 9
"""A port without a listener: a host that can be reached refuses the connection."""


def rank_environment(threads: int, encrypt: bool | None) -> dict[str, str]:
    """What a rank's libraries are told, and whether it encrypts."""
    return {
        **({} if encrypt is None else {"FERRULE_ENCRYPT": str(int(encrypt))}),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Weights in huge pages: decoding streams all of them for each token, and the misses of a small page's
        # translation cost several percent (torch reads this where the system offers huge pages on request).
        "THP_MEM_ALLOC_ENABLE": os.environ.get("THP_MEM_ALLOC_ENABLE", "1"),
    }


class LocalRanks:
    """`StartedRanks` of this machine. They die with the thread that started them."""

    def __init__(self, launcher: LocalLauncher, sockets: Sequence[socket.socket], hosts: Sequence[str], logs: Path):
        self.sockets, self.hosts = sockets, hosts
        self._launcher, self._logs = launcher, logs

    def poll(self) -> tuple[int | None, ...]:
        return self._launcher.poll()

    def log_tail(self, rank: int) -> str:
        log = self._logs / f"rank-{rank}.log"
        return " | ".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:]) if log.exists() else ""

    def discard(self) -> None:
        """End ranks that were never used."""
        for ours in self.sockets:
            ours.close()
        self._end(0)

    async def stop(self, grace: float) -> None:
        self._end(grace)

    def _end(self, grace: float) -> None:
        self._launcher.stop(grace)
        shutil.rmtree(self._logs, ignore_errors=True)


class LocalStarter:
    """`RankStarter` of this machine. ``lab``: rank r runs on its host r modulo hosts.

    ``standby``: keep a process for each rank that has done its imports, which are most of a start.
    """

    def __init__(self, lab: Lab | None = None, *, standby: bool = False) -> None:
        self._lab, self._with_standby = lab, standby
        self._standby: tuple[Kind, LocalRanks] | None = None

    async def start(self, options: RankOptions) -> LocalRanks:
        """Start it from the thread of the event loop, which lives as long as the ranks may."""
        ready, self._standby = self._standby, None
        if ready is not None:
            kind, ranks = ready
            if kind == _kind(options) and all(code is None for code in ranks.poll()):
                return self._told(ranks, options)
            ranks.discard()
        return self._told(self._start(*_kind(options)), options)

    @staticmethod
    def _told(ranks: LocalRanks, options: RankOptions) -> LocalRanks:
        for ours in ranks.sockets:
            with suppress(ConnectionError):  # it has died meanwhile, which the reader notices
                ours.sendall(encode(Start(options)))
        return ranks

    def expect(self, kind: Kind) -> None:
        """Have processes do their imports before it is known what they are to run, for a `start` of this kind."""
        self._standby = kind, self._start(*kind)

    async def prepare(self, deployment: Deployment) -> bool:
        if self._standby is not None and any(code is not None for code in self._standby[1].poll()):
            self.discard()
        if self._with_standby and self._standby is None:
            self.expect(_kind(deployment.options))
        return True

    async def close(self) -> None:
        self.discard()

    def discard(self) -> None:
        """End the processes that wait. Safe to call twice."""
        ready, self._standby = self._standby, None
        if ready is not None:
            ready[1].discard()

    def _start(self, size: int, threads: int, encrypt: bool | None) -> LocalRanks:
        lab = self._lab
        logs = Path(tempfile.mkdtemp(prefix="ferrule-"))
        pairs = [socket.socketpair() for _ in range(size)]
        theirs = [their for _, their in pairs]

        def command(rank: int) -> list[str]:
            argv = [
                sys.executable,
                "-m",
                "ferrule.process.lifeline",
                "ferrule.engine.rank.worker",
                str(theirs[rank].fileno()),
            ]
            return argv if lab is None else lab.command(rank % lab.size, argv)

        launcher = LocalLauncher(
            command,
            size,
            env=rank_environment(threads, encrypt),
            rank_env=None if lab is None else lab.rank_env(size, port=lab.new_port()),
            pass_fds=[[their.fileno()] for their in theirs],
            output=logs,
        )
        try:
            launcher.start()
        except BaseException as error:
            for ours, _ in pairs:
                ours.close()
            shutil.rmtree(logs, ignore_errors=True)
            if isinstance(error, OSError):
                raise ModelUnavailable(f"this machine cannot start a process now: {error}") from error
            raise
        finally:
            for their in theirs:
                their.close()
        hosts = ["" if lab is None else lab.name(rank % lab.size) for rank in range(size)]
        return LocalRanks(launcher, [ours for ours, _ in pairs], hosts, logs)


def _kind(options: RankOptions) -> Kind:
    return options.plan.world_size, options.threads, options.encrypt


class LocalPlanner:
    """Always the same plan: on this machine, where a process that died can be started again, or on the hosts of a
    ``lab``, as soon as cables lead to all of them."""

    def __init__(self, lab: Lab | None = None, *, standby: bool = False) -> None:
        self._lab = lab
        self._starter = LocalStarter(lab, standby=standby)

    @contextmanager
    def expecting(self, ranks: int, options: EngineOptions) -> Iterator[None]:
        """Have so many ranks do their imports now, while this process does its own and reads the model. Where there
        turn out to be others, or nothing is started, they are ended."""
        self._starter.expect((ranks, options.rank_threads(ranks), options.encrypt))
        try:
            yield
        finally:
            self._starter.discard()

    async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
        if loss is not None and self._lab is not None:
            needed = range(min(self._lab.size, options.plan.world_size))
            reached = await _reached(self._lab)
            missing = [self._lab.name(host) for host in needed if host not in reached]
            if missing:
                raise ModelUnavailable(
                    f"{' and '.join(missing)} cannot be reached from {self._lab.name(0)}, and the model needs "
                    f"{len(needed)} hosts; it returns by itself when the cables are back"
                )
        return Deployment(options, self._starter, self._starter)

    async def better(self, options: RankOptions, now: Deployment) -> Deployment | None:
        return None

    def chosen(self, deployment: Deployment) -> None:
        pass


async def _reached(lab: Lab) -> set[int]:
    """The hosts to which cables lead that carry something now, from the first one on."""
    reached, frontier = {0}, [0]
    while frontier:
        host = frontier.pop()
        ahead = [other for other in lab.topology.neighbours(host) if other not in reached]
        cables = [(host, other, cable.address(other)) for other in ahead for cable in lab.between(host, other)]
        answers = await asyncio.gather(*(_answers(lab, host, address) for _, _, address in cables))
        found = {other for (_, other, _), answered in zip(cables, answers, strict=True) if answered}
        reached |= found
        frontier += found
    return reached


async def _answers(lab: Lab, host: int, address: str) -> bool:
    """Whether a connection attempt from ``host`` to a closed port is refused, which a host that is there does."""
    with lab.inside(host):
        attempt = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with attempt:
        attempt.setblocking(False)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await asyncio.get_running_loop().sock_connect(attempt, (address, CLOSED_PORT))
        except ConnectionRefusedError:
            return True
        except OSError:  # also the timeout
            return False
        return True

"""Start ranks as processes of this machine, also in the hosts of a lab."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.cluster import LocalLauncher
from ferrule.engine.options import RankOptions
from ferrule.engine.starting import Formation, Loss
from ferrule.errors import ModelUnavailable

if TYPE_CHECKING:
    from ferrule.lab import Lab

LOG_TAIL = 5
"""Lines of a dead rank's output that its error quotes."""
ANSWER_SECONDS = 0.5
"""How long a host of a lab may take to answer before it counts as cut off."""
CLOSED_PORT = 9
"""A port on which nobody listens: a host that can be reached refuses the connection."""


def rank_environment(threads: int) -> dict[str, str]:
    """What a rank's libraries are told."""
    return {
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

    async def stop(self, grace: float) -> None:
        self._launcher.stop(grace)
        shutil.rmtree(self._logs, ignore_errors=True)


class LocalStarter:
    """`RankStarter` of this machine. ``lab``: rank r runs on its host r modulo hosts."""

    def __init__(self, lab: Lab | None = None) -> None:
        self._lab = lab

    async def start(self, options: RankOptions) -> LocalRanks:
        """Start it from the thread of the event loop, which lives as long as the ranks may."""
        lab, size = self._lab, options.plan.world_size
        logs = Path(tempfile.mkdtemp(prefix="ferrule-"))
        pairs = [socket.socketpair() for _ in range(size)]
        theirs = [their for _, their in pairs]
        module = [sys.executable, "-m", "ferrule.engine.worker", options.to_json()]

        def command(rank: int) -> list[str]:
            argv = [*module, str(theirs[rank].fileno())]
            return argv if lab is None else lab.command(rank % lab.size, argv)

        launcher = LocalLauncher(
            command,
            size,
            env=rank_environment(options.threads),
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


class LocalPlanner:
    """Always the same plan, on this machine: a process that died can be started again."""

    async def form(self, options: RankOptions, loss: Loss | None) -> Formation:
        return Formation(options, LocalStarter())


class LabPlanner:
    """Always the same plan, on the hosts of a lab, as soon as cables lead to all of them."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    async def form(self, options: RankOptions, loss: Loss | None) -> Formation:
        if loss is not None:
            needed = range(min(self._lab.size, options.plan.world_size))
            reached = await self._reached()
            missing = [self._lab.name(host) for host in needed if host not in reached]
            if missing:
                raise ModelUnavailable(
                    f"{' and '.join(missing)} cannot be reached from {self._lab.name(0)}, and the model needs "
                    f"{len(needed)} hosts; it returns by itself when the cables are back"
                )
        return Formation(options, LocalStarter(self._lab))

    async def _reached(self) -> set[int]:
        """The hosts to which cables lead that carry something now, from the first one on."""
        reached, frontier = {0}, [0]
        while frontier:
            host = frontier.pop()
            ahead = [other for other in self._lab.topology.neighbours(host) if other not in reached]
            answers = await asyncio.gather(*(self._answers(host, other) for other in ahead))
            found = [other for other, answered in zip(ahead, answers, strict=True) if answered]
            reached.update(found)
            frontier += found
        return reached

    async def _answers(self, host: int, other: int) -> bool:
        return any(
            await asyncio.gather(*(self._knock(host, cable.address(other)) for cable in self._lab.between(host, other)))
        )

    async def _knock(self, host: int, address: str) -> bool:
        with self._lab.inside(host):
            knocking = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with knocking:
            knocking.setblocking(False)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await asyncio.get_running_loop().sock_connect(knocking, (address, CLOSED_PORT))
            except ConnectionRefusedError:
                return True
            except OSError:  # also the timeout
                return False
            return True

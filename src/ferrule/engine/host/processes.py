"""Rank processes of this machine, also in the hosts of a lab. Starting them needs few imports, so it can come first."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ferrule.errors import ModelUnavailable
from ferrule.launch import LocalLauncher
from ferrule.process import usable_cores
from ferrule.process.lifeline import LIFELINE

if TYPE_CHECKING:
    from ferrule.lab import Lab

SENDING_MODULE = "ferrule.engine.shards.sending"
RANK_MODULE = "ferrule.engine.rank.worker_process"
LOG_TAIL = 5
"""Lines of a dead rank's output that its error quotes."""


class Kind(NamedTuple):
    """Start-up parameters of rank processes: how many they are, threads of each, and whether they encrypt (see
    `EngineOptions`). The rest comes over their control connections."""

    ranks: int
    threads: int
    encrypt: bool | None


def rank_threads(threads: int | None, ranks: int) -> int:
    """CPU threads of each of ``ranks`` on this machine; ``threads``: as in `EngineOptions`."""
    return threads or max(1, usable_cores() // ranks)


def rank_environment(threads: int, encrypt: bool | None) -> dict[str, str]:
    """Environment variables of a rank: settings of its libraries, and whether it encrypts."""
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

    def __init__(
        self, kind: Kind, launcher: LocalLauncher, sockets: Sequence[socket.socket], hosts: Sequence[str], logs: Path
    ) -> None:
        self.kind, self.sockets, self.hosts = kind, sockets, hosts
        self._launcher, self._logs = launcher, logs

    def poll(self) -> tuple[int | None, ...]:
        return self._launcher.poll()

    def log_tail(self, rank: int) -> str:
        log = self._logs / f"rank-{rank}.log"
        return " | ".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:]) if log.exists() else ""

    def discard(self) -> None:
        """End them at once. Safe to call twice."""
        for ours in self.sockets:
            ours.close()
        self._end(0)

    async def stop(self, grace: float) -> None:
        self._end(grace)

    def _end(self, grace: float) -> None:
        self._launcher.stop(grace)
        shutil.rmtree(self._logs, ignore_errors=True)


def start_ranks(kind: Kind, lab: Lab | None = None) -> LocalRanks:
    """Start rank processes, which do their imports and wait for their options, from a thread that lives as long as they
    may. ``lab``: rank r runs on its host r modulo hosts. Raises `ModelUnavailable` where that cannot be now."""
    size = kind.ranks
    logs = Path(tempfile.mkdtemp(prefix="ferrule-"))
    pairs = [socket.socketpair() for _ in range(size)]
    theirs = [their for _, their in pairs]

    def command(rank: int) -> list[str]:
        argv = [sys.executable, *LIFELINE, RANK_MODULE, str(theirs[rank].fileno())]
        return argv if lab is None else lab.command(rank % lab.size, argv)

    launcher = LocalLauncher(
        command,
        size,
        env=rank_environment(kind.threads, kind.encrypt),
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
    return LocalRanks(kind, launcher, [ours for ours, _ in pairs], hosts, logs)


@contextmanager
def expecting(ranks: int, threads: int | None, encrypt: bool | None) -> Iterator[LocalRanks | None]:
    """As many processes as a model may need, for a `LocalPlanner`: they do their imports while this process does its
    own and reads the model. At the end they are ended. None where they would be more than there are cores, which gains
    nothing, and may be a slip of the hand."""
    if ranks > usable_cores():
        yield None
        return
    started = start_ranks(Kind(ranks, rank_threads(threads, ranks), encrypt))
    try:
        yield started
    finally:
        started.discard()

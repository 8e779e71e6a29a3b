"""Rank processes of this machine, also in the hosts of a lab. Starting them needs few imports, so it can come first."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ferrule.errors import ModelUnavailable
from ferrule.launch import LocalLauncher
from ferrule.process import usable_cores
from ferrule.process.lifeline import LIFELINE

if TYPE_CHECKING:
    from ferrule.engine.host.placement import Deployment
    from ferrule.engine.options import RankOptions
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
        self,
        kind: Kind,
        launcher: LocalLauncher,
        pairs: list[tuple[socket.socket, socket.socket]],
        hosts: Sequence[str],
        logs: Path,
        port: int,
    ) -> None:
        """``pairs``: for each rank our end of its control connection, and its own; the latter are only read, by those
        who start its process. ``port``: in a lab, where ranks listen."""
        self.kind, self.hosts, self.port = kind, hosts, port
        self._launcher, self._logs, self._pairs = launcher, logs, pairs
        self.standby: Callable[[], LocalRanks | None] = lambda: None
        """Has processes that may take the place of those that end."""

    @property
    def sockets(self) -> list[socket.socket]:
        return [ours for ours, _ in self._pairs]

    def poll(self) -> tuple[int | None, ...]:
        return self._launcher.poll()

    def log_tail(self, rank: int) -> str:
        log = self._logs / f"rank-{rank}.log"
        return " | ".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:]) if log.exists() else ""

    async def replace(self, ranks: Sequence[int], deployment: Deployment) -> Sequence[socket.socket]:
        """See `StartedRanks.replace`; from the thread that started the others."""
        for rank in ranks:
            self.renew(rank)
            tell_options(self._pairs[rank][0], deployment.options)
        return [self._pairs[rank][0] for rank in ranks]

    async def end(self, ranks: Sequence[int]) -> None:
        """See `StartedRanks.end`."""
        for rank in ranks:
            self._launcher.end(rank)

    def options_of(self, rank: int, options: RankOptions) -> RankOptions:
        """See `StartedRanks.options_of`."""
        return options

    def renew(self, rank: int) -> None:
        """Another process in the place of one, which is ended if it runs. Raises `ModelUnavailable`."""
        others = self.standby()
        if others is not None and others.kind == self.kind and others.poll()[rank] is None:
            self._take(rank, others)
            return
        pair = self._pairs[rank] = socket.socketpair()
        try:
            self._launcher.replace(rank, [pair[1].fileno()])
        except OSError as error:
            pair[0].close()
            raise ModelUnavailable(f"this machine cannot start a process now: {error}") from error
        finally:
            pair[1].close()

    def _take(self, rank: int, others: LocalRanks) -> None:
        self._launcher.take(rank, others._launcher)
        self._pairs[rank], others._pairs[rank] = others._pairs[rank], self._pairs[rank]
        with suppress(OSError):  # of no more use than for the last words of its error
            (others._logs / f"rank-{rank}.log").replace(self._logs / f"rank-{rank}.log")

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


def tell_options(ours: socket.socket, options: RankOptions) -> None:
    """To a rank process that waits for them."""
    from ferrule.engine.messages import Start, encode  # with what processes that are to start soon need not wait for

    with suppress(ConnectionError):  # it has died meanwhile, which the reader notices
        ours.sendall(encode(Start(options)))


def start_ranks(
    kind: Kind, lab: Lab | None = None, beside: LocalRanks | None = None, first_host: int = 0
) -> LocalRanks:
    """Start rank processes, which do their imports and wait for their options, from a thread that lives as long as they
    may. ``lab``: rank r runs on its host ``first_host`` + r modulo hosts. ``beside``: others, whose places these may
    take. Raises `ModelUnavailable` where that cannot be now."""
    size = kind.ranks
    logs = Path(tempfile.mkdtemp(prefix="ferrule-"))
    pairs = [socket.socketpair() for _ in range(size)]
    port = 0 if lab is None else lab.new_port() if beside is None else beside.port

    def command(rank: int) -> list[str]:
        argv = [sys.executable, *LIFELINE, RANK_MODULE, str(pairs[rank][1].fileno())]
        return argv if lab is None else lab.command((first_host + rank) % lab.size, argv)

    launcher = LocalLauncher(
        command,
        size,
        env=rank_environment(kind.threads, kind.encrypt),
        rank_env=None if lab is None else lab.rank_env(size, port=port, first=first_host),
        pass_fds=[[their.fileno()] for _, their in pairs],
        output=logs,
        lasting=True,
        beside=None if beside is None else beside._launcher,
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
        for _, their in pairs:
            their.close()
    hosts = ["" if lab is None else lab.name((first_host + rank) % lab.size) for rank in range(size)]
    return LocalRanks(kind, launcher, pairs, hosts, logs, port)


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

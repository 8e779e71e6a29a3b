"""The processes of a model's ranks, as seen by the process that started them: what they say, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule import errors
from ferrule.cluster import LocalLauncher
from ferrule.engine.options import RankOptions
from ferrule.errors import EngineError, FabricError, FerruleError

if TYPE_CHECKING:
    from ferrule.lab import Lab

SETTLE = 0.25
"""Seconds after the first sign of trouble in which the other ranks' reports are awaited, to find the first cause."""
LINE_LIMIT = 1 << 26
"""Bytes of the longest message that a rank may send."""
LOG_TAIL = 5
"""Lines of a dead rank's output that its error quotes."""

Event = dict[str, Any]


class RankFailure:
    """What is known of how the ranks failed; picks the cause among the consequences."""

    def __init__(self) -> None:
        self.reported: dict[int, FerruleError] = {}

    def report(self, rank: int, kind: str, message: str) -> None:
        found = getattr(errors, kind, EngineError)
        plain = isinstance(found, type) and issubclass(found, FerruleError) and found is not errors.PeerLost
        error = found(message) if plain else FabricError(message)
        self.reported.setdefault(rank, error)

    def cause(self, codes: tuple[int | None, ...], logs: Path) -> FerruleError:
        """The error to show: a rank's own report, else how one died, else a report of having lost a peer."""
        for rank, error in sorted(self.reported.items()):
            if not isinstance(error, FabricError):
                return _placed(error, rank) if isinstance(error, EngineError) else error
        for rank, code in enumerate(codes):
            if code is not None and rank not in self.reported:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
                return EngineError(f"rank {rank} {how}{_tail(logs, rank)}")
        for rank, error in sorted(self.reported.items()):
            return EngineError(f"rank {rank}: {error}")
        return EngineError("a rank closed its control connection")


def _placed(error: FerruleError, rank: int) -> FerruleError:
    return type(error)(f"rank {rank}: {error}")


def _tail(logs: Path, rank: int) -> str:
    log = logs / f"rank-{rank}.log"
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL:] if log.exists() else []
    return "; its last words: " + " | ".join(lines) if lines else ""


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


class Ranks:
    """Starts one process per rank and relays their messages.

    ``on_event(rank, event)`` is called for each message and ``on_failure(error)`` once, when any rank is lost before
    `stop`. Start and stop it from the thread of the event loop: the ranks die with the thread that started them.
    ``lab``: rank r runs on its host r modulo hosts.
    """

    def __init__(
        self,
        options: RankOptions,
        on_event: Callable[[int, Event], None],
        on_failure: Callable[[FerruleError], None],
        lab: Lab | None = None,
    ) -> None:
        self.size = options.plan.world_size
        self._driver = options.plan.driver
        self._on_event, self._on_failure = on_event, on_failure
        self._logs = Path(tempfile.mkdtemp(prefix="ferrule-"))
        self._failure = RankFailure()
        self._stopping = False
        self._readers: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []  # in rank order; one that is dropped closes its socket
        pairs = [socket.socketpair() for _ in range(self.size)]
        self._ours = [ours for ours, _ in pairs]
        theirs = [their for _, their in pairs]
        module = [sys.executable, "-m", "ferrule.engine.worker", options.to_json()]

        def command(rank: int) -> list[str]:
            argv = [*module, str(theirs[rank].fileno())]
            return argv if lab is None else lab.command(rank % lab.size, argv)

        self._launcher = LocalLauncher(
            command,
            self.size,
            env=rank_environment(options.threads),
            rank_env=None if lab is None else lab.rank_env(self.size, port=lab.new_port()),
            pass_fds=[[their.fileno()] for their in theirs],
            output=self._logs,
        )
        try:
            self._launcher.start()
        except BaseException:
            for ours in self._ours:
                ours.close()
            shutil.rmtree(self._logs, ignore_errors=True)
            raise
        finally:
            for their in theirs:
                their.close()

    async def connect(self) -> None:
        """Begin to relay messages."""
        for rank, ours in enumerate(self._ours):
            reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
            self._writers.append(writer)
            self._readers.append(asyncio.create_task(self._relay(rank, reader), name=f"rank {rank}"))

    def send(self, message: Event) -> None:
        """Send to the driver. Silent when it is gone: its loss is reported by `on_failure`."""
        driver = self._writers[self._driver]
        if not driver.is_closing():
            driver.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def stop(self) -> None:
        """End every rank and remove their logs. Returns within about a second; safe to call twice."""
        self._stopping = True
        self._launcher.stop(grace=0.3)
        for task in self._readers:
            task.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()  # nobody is left to read what was not sent
        for ours in self._ours[len(self._writers) :]:
            ours.close()
        shutil.rmtree(self._logs, ignore_errors=True)

    async def _relay(self, rank: int, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                event: Event = json.loads(line)
                if event["event"] == "error":
                    self._failure.report(rank, event["type"], event["message"])
                else:
                    self._on_event(rank, event)
        except ConnectionError:
            pass  # the same as the end of the stream: the rank is gone
        except Exception as error:  # noqa: BLE001 - a message that cannot be taken must not leave the model hanging
            self._failure.report(rank, "EngineError", f"its message could not be taken: {error!r}")
        if not self._stopping:
            self._stopping = True
            await asyncio.sleep(SETTLE)
            cause = self._failure.cause(self._launcher.poll(), self._logs)
            self._launcher.stop(grace=0.1)
            self._on_failure(cause)

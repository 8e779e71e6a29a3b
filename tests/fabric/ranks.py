"""Run a case of `cases.py` on real ranks, and look at what each of them said."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ferrule.lab import Lab
from ferrule.launch import LocalLauncher

CASES = Path(__file__).with_name("cases.py")
SECONDS = 60.0
_CACHE = tempfile.TemporaryDirectory(prefix="ferrule-tests-")
"""Cache of the ranks, so that what they measure of links does not get into the user's."""


class Ranks:
    """A running case. Every rank reports through its own pipe: one JSON object per line.

    With a ``lab`` rank r runs on its host r (modulo the number of hosts).
    """

    def __init__(
        self,
        case: str,
        size: int,
        *,
        transport: str = "auto",
        arguments: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        rank_env: Sequence[Mapping[str, str]] | None = None,
        timeout: float = 20.0,
        lab: Lab | None = None,
    ) -> None:
        self.size = size
        pipes = [os.pipe() for _ in range(size)]
        self._readers = [os.fdopen(reader) for reader, _ in pipes]
        writers = [writer for _, writer in pipes]
        argv = [sys.executable, str(CASES), case, json.dumps(dict(arguments or {}))]
        self.launcher = LocalLauncher(
            argv if lab is None else lambda rank: lab.command(rank % lab.size, argv),
            size,
            env={
                "FERRULE_TRANSPORT": transport,
                "FERRULE_TIMEOUT": str(timeout),
                "OMP_NUM_THREADS": "1",
                "XDG_CACHE_HOME": _CACHE.name,
                **(env or {}),
            },
            rank_env=[
                {"REPORT_FD": str(writer), **hosted, **own}
                for writer, hosted, own in zip(
                    writers, lab.rank_env(size) if lab else [{}] * size, rank_env or [{}] * size, strict=True
                )
            ],
            pass_fds=[[writer] for writer in writers],
        )
        try:
            self.launcher.start()
        finally:
            for writer in writers:
                os.close(writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.launcher.stop()
        for reader in self._readers:
            reader.close()

    def next(self, rank: int) -> dict[str, Any]:
        """The next report of ``rank``; waits for it, and fails when the rank ends without one."""
        line = self._readers[rank].readline()
        assert line, f"rank {rank} ended without a report"
        report: dict[str, Any] = json.loads(line)
        return report

    def reports(self) -> list[dict[str, Any]]:
        """The next report of every rank."""
        return [self.next(rank) for rank in range(self.size)]

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal; returns the moment on the clock that all processes of this machine share."""
        moment = time.monotonic()
        os.kill(self.launcher.pids[rank], number)
        return moment

    def until_asleep(self, rank: int) -> None:
        """Wait until ``rank`` sleeps in the kernel, where the system tells: then it waits for its peers."""
        stat = Path(f"/proc/{self.launcher.pids[rank]}/stat")
        deadline = time.monotonic() + 10
        while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "S":
            assert time.monotonic() < deadline, f"rank {rank} does not sleep"

    def finish(self) -> None:
        """Every rank must end well."""
        result = self.launcher.wait(SECONDS)
        assert result.first_failed is None, result


def run(case: str, size: int, **options: Any) -> list[dict[str, Any]]:
    """Run a case to its end and return one report per rank."""
    (reports,) = run_all(case, size=size, **options)
    return reports


def run_all(*cases: str, size: int, **options: Any) -> list[list[dict[str, Any]]]:
    """Run cases one after the other in the same group; for each of them one report per rank."""
    with Ranks("+".join(cases), size, **options) as ranks:
        reports = [ranks.reports() for _ in cases]
        ranks.finish()
    return reports

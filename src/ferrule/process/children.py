"""Processes that belong together: each leads a process group of its own, and none outlives this process."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ferrule.process.system import has_exited, signal_group
from ferrule.process.tied import tied


class Processes:
    """The processes of the ranks 0, 1, … in the order in which they were started. Not thread-safe.

    On Linux the kernel kills them when the *thread* that called `start` ends.
    """

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.codes: list[int | None] = []
        self.first_failed: int | None = None
        """The one that first ended with a status other than 0 although nobody was `stopping` them."""
        self.stopping = False

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)

    @property
    def running(self) -> tuple[int, ...]:
        """Those that had not ended at the last `poll`."""
        return tuple(index for index, code in enumerate(self.codes) if code is None)

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        cpus: Sequence[int] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start one more. ``cpus``: those it may run on; None: all. Raises `OSError`."""
        process = subprocess.Popen(
            tied(command, cpus),
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            process_group=0,
        )
        self.processes.append(process)
        self.codes.append(None)
        return process

    def poll(self) -> tuple[int | None, ...]:
        """The exit status of each so far (None: still running). Never waits."""
        for index in self.running:
            process = self.processes[index]
            if has_exited(process):
                # Before the process is reaped its id cannot be reused, so this can only hit its own descendants.
                signal_group(process.pid, signal.SIGKILL)
                code = self.codes[index] = process.wait()
                if code != 0 and self.first_failed is None and not self.stopping:
                    self.first_failed = index
        return tuple(self.codes)

    def signal(self, number: int) -> None:
        """To those that still run, with their children."""
        for index in self.running:
            signal_group(self.processes[index].pid, number)

    def kill(self) -> None:
        """End those that still run, with their children, and wait for it."""
        self.stopping = True
        self.signal(signal.SIGKILL)
        for index in self.running:
            self.codes[index] = self.processes[index].wait()

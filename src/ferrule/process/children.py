"""Start a process that cannot outlive this one, and hold several that belong together."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ferrule.process.system import exit_fd, has_exited, signal_group
from ferrule.process.tied import tied

_POLL_SECONDS = 0.02
"""Seconds between two looks for exits where the system has no descriptor to wait on."""


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    cpus: Sequence[int] | None = None,
    pass_fds: Sequence[int] = (),
    tie: bool = True,
) -> subprocess.Popen[bytes]:
    """A process that leads a group of its own and is killed when this one dies (on Linux). Raises `OSError`.

    More exactly: when the *thread* that starts it ends. ``tie=False``: not so, where it ends by itself and has to clean
    up. ``cpus``: those that a tied one may run on; None: all.
    """
    return subprocess.Popen(
        tied(command, cpus) if tie else command,
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        process_group=0,
    )


class Children:
    """Processes that belong together, as `start` starts them: 0, 1, … in the order in which they come. Not thread-safe.

    ``codes``: the exit status of each (None: still running).
    """

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.codes: list[int | None] = []
        self.first_failed: int | None = None
        """The one that first ended with a status other than 0 although they were not being stopped."""
        self._stopping = False
        self._exits: dict[int, int] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)

    @property
    def running(self) -> tuple[int, ...]:
        """Those that had not ended at the last `poll`."""
        return tuple(index for index, code in enumerate(self.codes) if code is None)

    @property
    def exit_fds(self) -> tuple[int, ...]:
        """Descriptors that become readable when one ends."""
        return tuple(self._exits.values())

    @property
    def poll_seconds(self) -> float | None:
        """Seconds that one may wait before the next `poll`: for ever where `exit_fds` tell of all that run."""
        return None if len(self._exits) == len(self.running) else _POLL_SECONDS

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """One more, that `start` has started."""
        self.processes.append(process)
        self.codes.append(None)
        self._watch(len(self.processes) - 1)

    def replace(self, index: int, process: subprocess.Popen[bytes]) -> None:
        """One more, in the place of one that has ended."""
        self.processes[index], self.codes[index] = process, None
        self._watch(index)

    def give(self, index: int) -> subprocess.Popen[bytes]:
        """One that runs, to others, who end it; here it counts as ended."""
        self.codes[index] = 0
        self._forget(index)
        return self.processes[index]

    def poll(self) -> tuple[int | None, ...]:
        """The exit status of each so far. Never waits."""
        for index in self.running:
            process = self.processes[index]
            if has_exited(process):
                # Before the process is reaped its id cannot be reused, so this can only hit its own descendants.
                signal_group(process.pid, signal.SIGKILL)
                code = self._reap(index)
                if code != 0 and self.first_failed is None and not self._stopping:
                    self.first_failed = index
        return tuple(self.codes)

    def wait(self, seconds: float | None, fds: Sequence[int] = ()) -> None:
        """Until one has ended, one of ``fds`` can be read, or ``seconds`` have passed; may return earlier."""
        limits = [each for each in (seconds, self.poll_seconds) if each is not None]
        poller = select.poll()
        for fd in (*fds, *self.exit_fds):
            poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, min(limits)) * 1000 if limits else None)

    def signal(self, number: int) -> None:
        """To those that still run, with their children."""
        for index in self.running:
            signal_group(self.processes[index].pid, number)

    def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL for what is left after ``grace`` seconds. Safe to call twice."""
        self.poll()
        self._stopping = True  # what ends because of this is no failure of its own
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while None in self.poll() and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
        self.kill()

    def end(self, index: int) -> None:
        """End this one at once, with its children, if it still runs."""
        if self.poll()[index] is None:
            signal_group(self.processes[index].pid, signal.SIGKILL)
            self._reap(index)

    def kill(self) -> None:
        """End those that still run, with their children, and wait for it."""
        self._stopping = True
        self.signal(signal.SIGKILL)
        for index in self.running:
            self._reap(index)

    def _reap(self, index: int) -> int:
        code = self.codes[index] = self.processes[index].wait()
        self._forget(index)
        return code

    def _watch(self, index: int) -> None:
        watch = exit_fd(self.processes[index].pid)
        if watch is not None:
            self._exits[index] = watch

    def _forget(self, index: int) -> None:
        watch = self._exits.pop(index, None)
        if watch is not None:
            os.close(watch)

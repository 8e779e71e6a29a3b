"""The processes of one contestant: started, asked to play, and never left behind."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ferrule.bench.fabric.rank import Task
from ferrule.bench.fabric.sweep import Cell, Contestant
from ferrule.launch import LocalLauncher

_END_SECONDS = 3.0
"""mpirun takes a second to clean up after its ranks."""


class JobError(Exception):
    """A contestant could not do what it was asked. ``lost``: its processes are of no more use."""

    def __init__(self, message: str, *, lost: bool) -> None:
        super().__init__(message)
        self.lost = lost


class Job:
    """Ranks that connect to a socket in ``folder`` and then wait for tasks; see rank.py for what is said there.

    ``launch`` makes a started launcher of them, given the socket's path and a folder for their output.
    """

    def __init__(self, folder: Path, ranks: int, launch: Callable[[Path, Path], LocalLauncher]) -> None:
        folder.mkdir(parents=True)
        self._logs = folder / "logs"
        self._controls: list[socket.socket] = []
        self._buffers = [b""] * ranks
        self._ranks = ranks
        self.rails: dict[str, int] = {}
        """By transport, how many rails the ranks have found to each other; known after `meet`."""
        path = folder / "control"
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(path))
            self._listener.listen(ranks)
            self._launcher = launch(path, self._logs)
        except BaseException:
            self._listener.close()
            raise

    def close(self) -> None:
        """End the ranks: by the end of their sockets, or by signals if that does not move them."""
        self._listener.close()
        for control in self._controls:
            control.close()
        with contextlib.suppress(TimeoutError):
            self._launcher.wait(_END_SECONDS)
        self._launcher.stop(grace=_END_SECONDS)

    @property
    def met(self) -> bool:
        return len(self._controls) == self._ranks

    def meet(self, deadline: float) -> None:
        """Wait until every rank has connected; ``deadline`` by `time.monotonic`. Raises `JobError`."""
        found: dict[int, socket.socket] = {}
        self._listener.settimeout(0.1)
        while len(found) < self._ranks:
            self._launcher.poll()
            if self._launcher.first_failed is not None or time.monotonic() > deadline:
                raise JobError(self._last_words("did not start"), lost=True)
            with contextlib.suppress(TimeoutError):
                control, _ = self._listener.accept()
                control.settimeout(max(0.1, deadline - time.monotonic()))
                hello = control.makefile("rb").readline().split()
                if hello:  # else it died meanwhile, which the next poll tells
                    found[int(hello[1])] = control
                    pairs = (word.decode().split("=") for word in hello[2:])
                    self.rails |= {transport: int(count) for transport, count in pairs}
        self._controls = [found[rank] for rank in range(self._ranks)]

    def play(self, contestant: Contestant, cell: Cell, samples: int, timeout: float) -> list[float]:
        """Microseconds of each sample, as rank 0 saw them. Raises `JobError`."""
        return self.ask(Task(cell.op, cell.count, cell.dtype, samples, contestant.impl, contestant.transport), timeout)

    def ask(self, task: Task, timeout: float) -> list[float]:
        """As `play`, of any task that the ranks know."""
        try:
            for control in self._controls:
                control.sendall(f"{task}\n".encode())
            answers = [answer.split(maxsplit=1) for answer in self._answers(time.monotonic() + timeout)]
        except OSError as error:
            raise JobError(self._last_words(f"went away ({error})"), lost=True) from error
        errors = [answer for answer in answers if answer[0] != "ok"]
        if errors:
            raise JobError(errors[0][1].strip(), lost=len(errors) < len(answers))
        return [float(sample) for sample in answers[0][1].split()]

    def _answers(self, deadline: float) -> list[str]:
        """A line from every rank, in their order."""
        lines: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for rank, control in enumerate(self._controls):
                selector.register(control, selectors.EVENT_READ, rank)
            while len(lines) < self._ranks:
                ready = selector.select(deadline - time.monotonic())
                if not ready:
                    raise JobError(self._last_words("gave no answer in time"), lost=True)
                for key, _ in ready:
                    rank = key.data
                    data = self._controls[rank].recv(1 << 20)
                    if not data:
                        raise JobError(self._last_words(f"ended on rank {rank}"), lost=True)
                    line, newline, self._buffers[rank] = (self._buffers[rank] + data).partition(b"\n")
                    if newline:
                        lines[rank] = line.decode()
                        selector.unregister(key.fileobj)
                    else:
                        self._buffers[rank] = line
        return [lines[rank] for rank in range(self._ranks)]

    def _last_words(self, what: str) -> str:
        """``what``, and the end of the output of the rank that failed or of all."""
        self._launcher.stop()
        failed = self._launcher.first_failed
        logs = sorted(self._logs.glob("*.log")) if failed is None else [self._logs / f"rank-{failed}.log"]
        said = "\n".join(log.read_text(errors="replace").strip()[-1500:] for log in logs).strip()
        return f"{what}; its output was:\n{said}" if said else f"{what}, without a word"

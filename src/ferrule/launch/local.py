"""Start the ranks of a job as processes of this machine, and never leave one behind.

Beside `supervisor`, which is a program on a host of a job and talks to its launcher in messages, this is for a caller
that is the ranks' own parent and hands them open descriptors, CPUs and its own terminal.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Self

from ferrule.config import outer_environment, rank_variables
from ferrule.errors import ConfigError
from ferrule.launch.output import RankOutput
from ferrule.process import Children, Outputs, start


@dataclass(frozen=True)
class JobResult:
    """Result of a job that has ended: ``codes[rank]`` is the exit status, negative for a signal, as in `subprocess`.

    ``first_failed``: the rank that ended badly first; the others were then stopped because of it.
    """

    codes: tuple[int, ...]
    first_failed: int | None

    @property
    def exit_code(self) -> int:
        """One status for the whole job, as a shell would give it (128 + signal for a killed rank)."""
        if self.first_failed is None:
            return 0
        code = self.codes[self.first_failed]
        return 128 - code if code < 0 else code


class LocalLauncher:
    """N ranks of one job as subprocesses of this machine; a context manager that starts and ends them. Not thread-safe.

    ``command``: what every rank runs, or a function from the rank to its command. ``env``: for all ranks, beside this
    process's; ``rank_env[rank]``: for one. ``cpus[rank]``: the CPUs a rank may use (None: all). ``output``: "inherit";
    "prefix" (every line to our stdout or stderr behind ``[rank] ``; it moves only during `poll` and `wait`, and a rank
    that fills its pipe meanwhile stands still); or a directory that gets ``rank-N.log`` with both streams.
    ``pass_fds[rank]``: more file descriptors that a rank inherits under the same numbers.

    Rank 0 inherits a socket that already listens, so no port can be lost to another process in between. Every rank
    leads its own process group. On Linux the kernel kills every rank when the *thread* that called `start` ends.
    ``lasting``: ranks may be replaced by others (`replace`, `take`), for which that socket is kept until `stop`.
    ``beside``: a lasting one that may take these ranks: they meet at the same place, by the same key.
    """

    def __init__(
        self,
        command: Sequence[str] | Callable[[int], Sequence[str]],
        ranks: int,
        *,
        env: Mapping[str, str] | None = None,
        rank_env: Sequence[Mapping[str, str]] | None = None,
        cpus: Sequence[Sequence[int] | None] | None = None,
        output: Literal["inherit", "prefix"] | Path = "inherit",
        pass_fds: Sequence[Sequence[int]] | None = None,
        lasting: bool = False,
        beside: LocalLauncher | None = None,
    ) -> None:
        if ranks < 1:
            raise ConfigError(f"a job needs at least one rank, not {ranks}")
        for name, given in (("rank_env", rank_env), ("cpus", cpus), ("pass_fds", pass_fds)):
            if given is not None and len(given) != ranks:
                raise ConfigError(f"{name} has {len(given)} entries for {ranks} ranks")
        self.ranks = ranks
        self._command = command
        self._env = dict(env or {})
        self._rank_env = rank_env or [{}] * ranks
        self._cpus = cpus or [None] * ranks
        self._output = output
        self._pass_fds = list(pass_fds or [()] * ranks)
        self._key: str = secrets.token_hex(32) if beside is None else beside._key
        self._lasting, self._beside = lasting, beside
        self._listener: socket.socket | None = None
        self._children = Children()
        # A notebook's streams have no bytes below them.
        sinks: dict[int, IO[bytes]] = {1: sys.stdout.buffer, 2: sys.stderr.buffer} if output == "prefix" else {}
        self._lines = RankOutput(ranks, sinks, dict.fromkeys(sinks, False))
        self._outputs = Outputs(self._lines)

    @property
    def pids(self) -> tuple[int, ...]:
        return self._children.pids

    @property
    def first_failed(self) -> int | None:
        """The rank that first ended with a status other than 0, before `stop` was called."""
        return self._children.first_failed

    def start(self) -> Self:
        """Start every rank. If one cannot be started, none is left running and the `OSError` is raised."""
        if self.pids:
            raise ConfigError("this launcher has already started its ranks")
        shared = None if self._beside is None else self._beside._listener
        self._beside = None
        listener = socket.create_server(("127.0.0.1", 0), backlog=128) if shared is None else shared.dup()
        try:
            for rank in range(self.ranks):
                self._children.add(self._start_rank(rank, listener))
        except BaseException:
            listener.close()
            self.stop(grace=0)
            raise
        if self._lasting:
            self._listener = listener
        else:
            listener.close()
        return self

    def end(self, rank: int) -> None:
        """End one at once, with its children."""
        self._children.end(rank)

    def replace(self, rank: int, pass_fds: Sequence[int]) -> None:
        """End a rank, if it runs, and start another in its place, with these descriptors. Raises `OSError`."""
        self._children.end(rank)
        if self._listener is None:
            raise OSError("these ranks are not replaced, or were stopped")
        self._pass_fds[rank] = pass_fds
        self._children.replace(rank, self._start_rank(rank, self._listener))

    def take(self, rank: int, other: LocalLauncher) -> None:
        """End a rank, if it runs, and have the one of ``other``, which was started `beside` this, in its place."""
        self._children.end(rank)
        self._children.replace(rank, other._children.give(rank))

    def _start_rank(self, rank: int, listener: socket.socket) -> subprocess.Popen[bytes]:
        command = self._command(rank) if callable(self._command) else self._command
        host, port = listener.getsockname()[:2]
        env = outer_environment() | rank_variables(rank, self.ranks, [f"{host}:{port}"], self._key)
        fds = list(self._pass_fds[rank])
        if rank == 0:
            env["FERRULE_LISTEN_FD"] = str(listener.fileno())
            fds.append(listener.fileno())
        env |= self._env
        env |= self._rank_env[rank]
        with self._streams(rank) as (stdout, stderr):
            return start(command, env=env, stdout=stdout, stderr=stderr, cpus=self._cpus[rank], pass_fds=fds)

    @contextmanager
    def _streams(self, rank: int) -> Iterator[tuple[IO[bytes] | int | None, int | None]]:
        if isinstance(self._output, Path):
            self._output.mkdir(parents=True, exist_ok=True)
            with (self._output / f"rank-{rank}.log").open("wb") as log:
                yield log, subprocess.STDOUT
        elif self._output == "prefix":
            with self._outputs.of(rank) as streams:
                yield streams
        else:
            yield None, None

    def poll(self) -> tuple[int | None, ...]:
        """The exit status of every rank so far (None: still running). Never waits."""
        self._outputs.drain()
        return self._children.poll()

    def wait(self, timeout: float | None = None) -> JobResult:
        """Wait until every rank has ended; when one ends badly, stop the others.

        ``timeout`` in seconds; raises `TimeoutError` when it passes, with the ranks still running.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while None in self.poll():
            if self.first_failed is not None:
                self.stop()
                break
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"the job still runs after {timeout:g} s")
            self._children.wait(left, self._outputs.fds)
        self._finish_output()
        return JobResult(tuple(code for code in self._children.codes if code is not None), self.first_failed)

    def stop(self, grace: float = 0.4) -> None:
        """End every rank: SIGTERM, and SIGKILL for what is left after ``grace`` seconds. Safe to call twice."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._children.stop(grace)
        self._finish_output()

    def _finish_output(self) -> None:
        self._outputs.drain()
        self._outputs.close()
        self._lines.finish()

    def __enter__(self) -> Self:
        if not self.pids:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

"""The program that runs on each host of a job, starts its ranks, and ends them all when the launcher is gone.

It talks over its standard input and output, or a socket (see `protocol`), so that it needs nothing but a way to be
started: by the launcher itself, by ssh, by an agent. Whatever the ranks start belongs to it on Linux, even what
detaches itself, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ferrule.config import outer_environment
from ferrule.launch import protocol
from ferrule.launch.facts import own_facts
from ferrule.mlx_backend import LIBRARY, library
from ferrule.process import Children, Outputs, adopt_orphans, kill_orphans, start

LOST_GRACE = 1.0
"""Seconds that ranks have to end when the launcher is gone."""

_CHUNK = 1 << 16
_MAX_WAITING = 1 << 20
"""Bytes for the launcher; ranks that print more wait until it has read them."""


class Supervisor:
    """One job's ranks on this host. ``below`` and ``above``: where the launcher's messages come from and ours go.
    ``ends``: the addresses of the launcher's end and ours of the connection to it, where ssh does not tell them."""

    def __init__(self, below: int, above: int, *, ends: tuple[str, str] | None = None) -> None:
        self._ends = ends
        self._below, self._above = below, above
        self._decoder = protocol.orders()
        self._waiting = bytearray(protocol.GREETING)
        self._ranks: list[int] = []
        self._children = Children()
        self._told: set[int] = set()
        self._outputs = Outputs(lambda rank, stream, data: self._tell(protocol.Printed(rank, stream, data)))
        self._sockets: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self._files = contextlib.ExitStack()
        self._silence: float | None = None
        self._heard = time.monotonic()
        self._kill_at: float | None = None
        self._gone = False
        self._refused = False

    def run(self) -> int:
        os.set_blocking(self._below, False)
        os.set_blocking(self._above, False)
        try:
            while not self._finished():
                self._wait()
                self._look_at_clocks()
                self._look_at_ranks()
        finally:
            self._children.kill()
            kill_orphans()
            self._files.close()
        return 0

    def _finished(self) -> bool:
        if self._gone:
            return not self._children.running
        ended = bool(self._ranks) and len(self._told) == len(self._ranks)
        return (ended or self._refused) and not self._waiting

    def _wait(self) -> None:
        """Until something has happened, and then read what came and write what goes."""
        poller = select.poll()
        if not self._gone:
            poller.register(self._below, select.POLLIN)
            if self._waiting:
                poller.register(self._above, select.POLLOUT)
        if len(self._waiting) < _MAX_WAITING:
            for fd in self._outputs.fds:
                poller.register(fd, select.POLLIN)
        for fd in self._children.exit_fds:
            poller.register(fd, select.POLLIN)
        seconds = [] if self._children.poll_seconds is None else [self._children.poll_seconds]
        now = time.monotonic()
        if self._kill_at is not None:
            seconds.append(self._kill_at - now)
        if self._silence is not None and not self._gone:
            seconds.append(self._heard + self._silence - now)
        ready = poller.poll(max(0.0, min(seconds)) * 1000 if seconds else None)
        for fd, _ in ready:
            if fd == self._below:
                self._listen()
            elif fd == self._above:
                self._speak()
            elif fd in self._outputs.fds:
                self._outputs.forward(fd)

    def _listen(self) -> None:
        try:
            data = os.read(self._below, _CHUNK)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self._heard = time.monotonic()
        if not data:
            self._lost()
            return
        for order in self._decoder.feed(data):
            self._obey(order)

    def _speak(self) -> None:
        try:
            sent = os.write(self._above, self._waiting)
        except BlockingIOError:
            return
        except ConnectionError:
            self._lost()
            return
        del self._waiting[:sent]

    def _lost(self) -> None:
        """The launcher is gone."""
        self._gone = True
        self._waiting.clear()
        self._stop(LOST_GRACE)

    def _tell(self, report: protocol.Report) -> None:
        if not self._gone:
            self._waiting += protocol.encode(report)

    def _refuse(self, why: str) -> None:
        self._children.kill()
        self._refused = True
        self._tell(protocol.Refused(why))

    def _obey(self, order: protocol.Order) -> None:
        match order:
            case protocol.Hello():
                self._hello(order)
            case protocol.Start():
                try:
                    self._start(order)
                except OSError as error:
                    what = error.filename or "the ranks"
                    self._refuse(f"cannot start {what}: {error.strerror or error}")
            case protocol.Signal(number):
                self._children.signal(number)
            case protocol.Stop(grace):
                self._stop(grace)
            case protocol.Ping():
                pass  # that something came is what counts

    def _hello(self, hello: protocol.Hello) -> None:
        """Tell who we are, and keep ports free for the ranks."""
        self._environment = outer_environment() | hello.env
        self._silence = hello.silence
        if hello.protocol != protocol.PROTOCOL:
            self._tell(protocol.Ready(protocol.PROTOCOL))
            return
        ports = []
        if hello.listen:
            family = socket.AF_INET6 if ":" in hello.listen else socket.AF_INET
            self._listener = socket.create_server((hello.listen, 0), family=family, backlog=128)
            ports.append(self._listener.getsockname()[1])
        self._sockets = [_keep_port() for _ in range(hello.ports)]
        ports += [kept.getsockname()[1] for kept in self._sockets]
        facts = own_facts(self._environment, links=hello.links, ends=self._ends)
        self._tell(protocol.Ready(protocol.PROTOCOL, tuple(ports), facts))

    def _start(self, order: protocol.Start) -> None:
        if self._kill_at is not None or self._ranks:
            return
        cwd = Path(order.cwd)
        if not cwd.is_dir():
            self._refuse(f"there is no directory {cwd}; choose one that is there: --cwd, or cwd in the hostfile")
            return
        common = {LIBRARY: library()} | order.defaults | self._environment | self._shared_files(order.files)
        if order.own_path:
            common["PATH"] = _with_own_programs(common.get("PATH", os.defpath))
        if sys.platform != "linux":
            for kept in self._sockets:  # there a port that is bound can be bound by no other process
                kept.close()
        for rank in order.ranks:
            self._start_rank(rank, common, cwd)
        if self._listener is not None:
            self._listener.close()

    def _start_rank(self, rank: protocol.RankCommand, common: Mapping[str, str], cwd: Path) -> None:
        env = {**common, **rank.env}
        fds = []
        if rank.rank == 0 and self._listener is not None:
            fds.append(self._listener.fileno())
            env["FERRULE_LISTEN_FD"] = str(fds[0])
        command = [sys.executable if word is None else word for word in rank.argv]
        with self._outputs.of(rank.rank) as (out, err):
            self._children.add(start(command, env=env, cwd=cwd, stdout=out, stderr=err, pass_fds=fds))
        self._ranks.append(rank.rank)

    def _shared_files(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Files that ranks may read while this process lives, by the variables that name them."""
        paths = {}
        for name, text in texts.items():
            if sys.platform == "linux":
                fd = os.memfd_create(name)
                os.write(fd, text.encode())
                paths[name] = f"/proc/{os.getpid()}/fd/{fd}"
            else:
                folder = self._files.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-"))
                path = Path(folder) / f"{name}.json"
                path.write_text(text)
                paths[name] = str(path)
        return paths

    def _look_at_ranks(self) -> None:
        for index, code in enumerate(self._children.poll()):
            if code is None or index in self._told:
                continue
            self._told.add(index)
            self._outputs.drain(self._ranks[index])
            self._tell(protocol.Exited(self._ranks[index], code))

    def _look_at_clocks(self) -> None:
        now = time.monotonic()
        if self._silence is not None and now > self._heard + self._silence and not self._gone:
            self._lost()
        if self._kill_at is not None and now >= self._kill_at:
            self._children.kill()
            self._kill_at = None

    def _stop(self, grace: float) -> None:
        """End the ranks: at once with SIGTERM, and after ``grace`` seconds with SIGKILL."""
        self._children.signal(signal.SIGTERM)
        at = time.monotonic() + grace
        self._kill_at = at if self._kill_at is None else min(at, self._kill_at)


def _keep_port() -> socket.socket:
    """A port kept from programs that ask for any free one; one that names it, and sets SO_REUSEADDR as servers do, gets
    it (on Linux)."""
    kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("", 0))
    return kept


def _with_own_programs(path: str) -> str:
    """In a virtual environment its programs come first, as if it were activated."""
    own = str(Path(sys.prefix) / "bin")
    return path if sys.prefix == sys.base_prefix or own in path.split(os.pathsep) else f"{own}{os.pathsep}{path}"


def main(arguments: Sequence[str]) -> int:
    """Argument: this host's address for the others, where neither ssh nor the job tells it. Or ``--control``, a
    connected socket to take for input and output, and the launcher's address and this host's."""
    adopt_orphans()
    ends: tuple[str, str] | None = None
    if arguments[:1] == ["--control"]:
        _, control, *told = arguments
        below, ends = int(control), (told[0], told[1])
        above = os.dup(below)
        os.set_inheritable(below, False)
    else:
        below, above = 0, os.dup(1)
        os.dup2(2, 1)  # whatever else prints must not come between the messages
        ends = ("", arguments[0]) if arguments else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(128 + signal.SIGHUP))
    return Supervisor(below, above, ends=ends).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The process in which a host's Ray node lives: ``python -m ferrule.agent.ray.process``.

It is told in a line on its standard input what to start, says in lines on its standard output what becomes of it, and
ends, with all that Ray and Ray's workers have started, when that input does: however the agent ended.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from ferrule.process import adopt_orphans, kill_orphans, last_line, reap_orphans, tied

START_SECONDS = 75.0
HEAD_SECONDS = 60.0
"""Time limit for reaching a head that may be starting still."""
END_SECONDS = 2.0
_DIAL_SECONDS = 2.0
_POLL_SECONDS = 0.1
_REAP_EVERY = 5.0
_ATTEMPTS = 2
"""Ray gives up where its own processes need more than some 15 s to begin, as they may while a model is loaded."""


class NodeOrder(msgspec.Struct, frozen=True, tag=True):
    """Order of the agent, in a line. ``arguments``: of ``ray start``; ``ports``: those that must be free, by what
    listens there; ``log``: a path; ``introduce``: the arguments of `ferrule.agent.ray.introduce`."""

    arguments: tuple[str, ...]
    env: dict[str, str]
    ports: dict[str, int]
    address: str
    head: tuple[str, int]
    is_head: bool
    temp: str
    log: str
    introduce: tuple[str, str, str, str]


class NodeUp(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """The node works: its actor answered."""


class NodeFailed(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """There is no node any more."""

    why: str


class _RefusedError(Exception):
    """Reason why there is no node, in words."""


class NodeProcess:
    """``ears``: the descriptor that ends with the agent."""

    def __init__(self, order: NodeOrder, ears: int) -> None:
        self._order, self._ears = order, ears
        self._temp = Path(order.temp)
        self._logs = order.log
        self._ray: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Until the input ends or the node does. Raises `_RefusedError`."""
        self._check_ports()
        if not self._order.is_head:
            self._await_head()
        temp = self._temp.resolve()
        self._logs = f"{self._order.log} and {temp}/session_latest/logs"
        shutil.rmtree(temp, ignore_errors=True)  # what was logged the last time
        Path(self._order.log).unlink(missing_ok=True)
        temp.mkdir(mode=0o700, parents=True)
        command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *self._order.arguments]
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._begin(command)
                break
            except _RefusedError:
                if not left:
                    raise
                self.end()
        assert self._ray is not None
        _say(NodeUp())
        while not self._told_to_end(_REAP_EVERY):
            reap_orphans(self._ray.pid)
            if self._ray.poll() is not None:
                raise _RefusedError(f"Ray's node ended; see {self._logs}")

    def _begin(self, command: list[str]) -> None:
        with Path(self._order.log).open("ab") as log:
            self._ray = self._start(command, log.fileno())
            self._introduce(log.fileno())

    def end(self) -> None:
        """Leave nothing behind. The node is asked first, so that the others hear of it at once."""
        if self._ray is not None and self._ray.poll() is None:
            self._ray.terminate()
            deadline = time.monotonic() + END_SECONDS
            while self._ray.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS / 5)
        kill_orphans()

    def remove_symlink(self) -> None:
        """Remove the symbolic link to Ray's directory."""
        if self._temp.is_symlink():
            self._temp.unlink()

    def _start(self, command: list[str], log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(tied(command), env=self._order.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _check_ports(self) -> None:
        for what, port in self._order.ports.items():
            try:
                socket.create_server((self._order.address, port)).close()
            except OSError as error:
                raise _RefusedError(
                    f"port {port}, for Ray's {what}, cannot be had at {self._order.address} "
                    f"({os.strerror(error.errno or 0)}); choose others: ferrule up --ray --ray-port PORT"
                ) from None

    def _await_head(self) -> None:
        """Ray itself would try for minutes, and say nothing."""
        place = self._order.head
        deadline = time.monotonic() + HEAD_SECONDS
        while (error := _dial_problem(place)) is not None:
            if time.monotonic() > deadline:
                where = f"{place[0]}:{place[1]}"
                raise _RefusedError(f"Ray's head does not answer at {where}: {error.strerror or error}")
            if self._told_to_end(_POLL_SECONDS):
                sys.exit(0)

    def _introduce(self, log: int) -> None:
        """Start the actor that tells of this host: when it answers, the node works."""
        assert self._ray is not None
        deadline = time.monotonic() + START_SECONDS
        port = (self._order.address, self._order.ports["node manager"])
        while _dial_problem(port) is not None:
            self._look(deadline, "did not start")
        command = [sys.executable, "-P", "-m", "ferrule.agent.ray.introduce", *self._order.introduce]
        actor = self._start(command, log)
        while actor.poll() is None:
            self._look(deadline, "does not start an actor")
        if actor.returncode:
            said = last_line(Path(self._order.log).read_text(errors="replace")) or "it says nothing"
            raise _RefusedError(f"Ray's node started, but no actor on it: {said}")

    def _look(self, deadline: float, what: str) -> None:
        assert self._ray is not None
        if self._told_to_end(_POLL_SECONDS):
            sys.exit(0)
        if self._ray.poll() is not None:
            raise _RefusedError(f"Ray's node did not start, or ended: see {self._logs}")
        if time.monotonic() > deadline:
            raise _RefusedError(f"Ray's node {what} within {START_SECONDS:g} s; see {self._logs}")

    def _told_to_end(self, seconds: float) -> bool:
        """Whether the agent is gone, or wants us gone; waits so long for that."""
        return bool(select.select([self._ears], [], [], seconds)[0])


def _dial_problem(place: tuple[str, int]) -> OSError | None:
    """Reason why nothing answers there; None where something does."""
    try:
        socket.create_connection(place, timeout=_DIAL_SECONDS).close()
    except OSError as error:
        return error
    return None


def _say(what: NodeUp | NodeFailed) -> None:
    try:
        os.write(1, msgspec.json.encode(what) + b"\n")
    except OSError:
        return  # the agent is gone: then the input ends, too


def main() -> int:
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    line = sys.stdin.readline()
    if not line:
        return 0
    process = NodeProcess(msgspec.json.decode(line, type=NodeOrder), sys.stdin.fileno())
    try:
        process.run()
    except _RefusedError as refused:
        _say(NodeFailed(str(refused)))
        return 1
    finally:
        process.end()
        process.remove_symlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

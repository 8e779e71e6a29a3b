"""Hosts on two switches, and the players on them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chaos_plan import CABLES, HOSTS

from ferrule.lab import Lab, Topology, switch
from ferrule.process import tied

PLAYER = Path(__file__).with_name("chaos_player.py")
CALLS = PLAYER.parents[1] / "fabric"
"""Directory of the operations whose results are known."""
START_SECONDS = 60.0

# The kernel is asked for TCP sockets in state LISTEN: /proc/net/tcp takes ten times as long.
_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP, _LISTEN = 4, 20, 0x301, 1 << 10
_LISTENERS = struct.pack(
    "IHHII BBBxI 48x", 72, _BY_FAMILY, _REQUEST_DUMP, 0, 0, socket.AF_INET, socket.IPPROTO_TCP, 0, _LISTEN
)


class Hang(Exception):
    """A player did not say in time what it should have said."""


class Player:
    """A process that plays ranks on one host. Reports come in order; those of other kinds are not lost on the way."""

    def __init__(self, host: int, pid: int, control: socket.socket, log: Path) -> None:
        self.host = host
        self.pid = pid
        self.log = log
        self.alive = True
        self.round = -1
        # Players are not waited for, so the number of a dead one may soon be another process's: signals go by this.
        self._process = os.pidfd_open(pid)
        self._control = control
        self._heard: list[dict[str, Any]] = []

    def play(self, number: int, **order: Any) -> None:
        """Begin a round; whatever it says of earlier ones is no longer heard."""
        self.round = number
        self._heard.clear()
        self.tell("play", **order)

    def tell(self, word: str, **fields: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it was killed
            self._control.send(json.dumps({"do": word, "round": self.round, **fields}).encode())

    def expect(self, events: Sequence[str], until: float) -> dict[str, Any]:
        """Its next report of one of these kinds. Raises `Hang` when it is not there by the moment ``until``."""
        while True:
            for report in self._heard:
                if report["event"] in events:
                    self._heard.remove(report)
                    return report
            self._control.settimeout(max(until - time.monotonic(), 1e-3))
            try:
                words = self._control.recv(1 << 16)
            except TimeoutError:
                raise Hang(f"no {' or '.join(events)}") from None
            if not words:
                self.alive = False
                raise Hang(f"it ended without {' or '.join(events)}; its log: {self.log.read_text()[-2000:]}")
            report = json.loads(words)
            if report["round"] == self.round:
                self._heard.append(report)

    def unhear(self, report: dict[str, Any]) -> None:
        """Hear it once more."""
        self._heard.insert(0, report)

    def kill(self) -> None:
        self.alive = False
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    def gone(self, seconds: float) -> bool:
        """Whether the process is gone within ``seconds``; one that was killed needs a moment for that."""
        return bool(select.select([self._process], [], [], seconds)[0])

    def trace(self) -> str:
        """Stacks of its threads, and its log."""
        size = self.log.stat().st_size
        self.signal(signal.SIGUSR1)
        end = time.monotonic() + 2.0
        while self.log.stat().st_size == size and time.monotonic() < end:
            time.sleep(0.01)
        return self.log.read_text()[-4000:]

    def close(self) -> None:
        self._control.close()
        os.close(self._process)


class Arena:
    """A lab, the process from which players are forked, and players that wait for their next part."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(Topology(HOSTS, switch(HOSTS).cables * CABLES))
        self._folder = folder
        self._players: list[Player] = []

    def __enter__(self) -> Self:
        self.lab.__enter__()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(START_SECONDS)
        command = tied([sys.executable, str(PLAYER), str(theirs.fileno())])
        # One thread per player, whatever libraries start: forking is safe only from a process with a single thread.
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CALLS), env.get("PYTHONPATH")]))
        self._forker = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()])
        theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for player in self._players:
            player.close()
        self._requests.close()
        self.lab.close()
        self._forker.kill()
        self._forker.wait()

    def address(self, host: int) -> str:
        return self.lab.cables[0].address(host)

    def cast(self, hosts: Sequence[int]) -> list[Player]:
        """A living player on each of the hosts; new ones are forked as far as needed."""
        for player in [player for player in self._players if not player.alive]:
            player.close()
            self._players.remove(player)
        idle = list(self._players)
        chosen = []
        for host in hosts:
            player = next((player for player in idle if player.host == host), None)
            if player is None:
                player = self._fork(host)
            else:
                idle.remove(player)
            chosen.append(player)
        return chosen

    def _fork(self, host: int) -> Player:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = self._folder / f"host-{host}.log"
        request = {
            "do": "fork",
            "namespace": self.lab.path(host),
            "env": self.lab.env(host),
            "log": str(log),
        }
        player = Player(host, self._ask(request, [theirs.fileno()]), ours, log)
        theirs.close()
        self._players.append(player)
        return player

    def segments(self) -> list[str]:
        """Names of the files in the players' /dev/shm."""
        names: list[str] = self._ask({"do": "list"})
        return names

    def _ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> Any:
        try:
            socket.send_fds(self._requests, [json.dumps(request).encode()], fds)
            return json.loads(self._requests.recv(1 << 16))
        except (OSError, ValueError) as error:
            status = self._forker.poll()
            raise RuntimeError(f"the process that forks players is of no more use (status {status})") from error

    def listening(self, host: int) -> list[tuple[str, int]]:
        """Addresses on which a process listens in ``host``."""
        with self.lab.inside(host), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.send(_LISTENERS)
            answer = kernel.recv(1 << 16)
        found = []
        while answer:
            length, kind = struct.unpack_from("IH", answer)
            if kind == _BY_FAMILY:
                port = struct.unpack_from("!H", answer, 20)[0]
                found.append((socket.inet_ntoa(answer[24:28]), port))
            answer = answer[(length + 3) & ~3 :]
        return found

    def strangers(self) -> list[int]:
        """Processes in the hosts that are no players of ours."""
        known = {player.pid for player in self._players if player.alive} | {os.getpid()}
        return [pid for pid in self.lab.processes() if pid not in known]

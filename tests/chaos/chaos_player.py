"""Processes that play ranks, round after round: ``python chaos_player.py SOCKET``.

The first process only imports everything and then forks players on demand, which takes milliseconds. Over its socket
come requests (JSON) with a player's own socket; a player is told there what to play, and reports there.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from chaos_work import batch
from exact_calls import WrongResult

import ferrule.fabric as fabric
from ferrule.errors import FerruleError

PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_REC, MS_SLAVE = 16384, 1 << 19
SETTLE_SECONDS = 2.0
REFORM_SECONDS = 10.0

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, doing: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"cannot {doing}: {os.strerror(ctypes.get_errno())}")


def serve(requests: socket.socket) -> None:
    """Fork a player for every request, with a /dev/shm of their own, so that what lies there is theirs."""
    check(libc.unshare(CLONE_NEWNS), "make a mount namespace")
    check(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "keep mounts private")
    check(libc.mount(b"chaos", b"/dev/shm", b"tmpfs", 0, None), "mount /dev/shm")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # players are not waited for, so none stays a zombie
    while True:
        words, fds, _, _ = socket.recv_fds(requests, 1 << 16, 1)
        if not words:
            return
        request = json.loads(words)
        if request["do"] == "list":
            requests.send(json.dumps(sorted(os.listdir("/dev/shm"))).encode())  # noqa: PTH208
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            Player(socket.socket(fileno=fds[0]), request).run()
            os._exit(0)
        os.close(fds[0])
        requests.send(json.dumps(pid).encode())


class Player:
    def __init__(self, control: socket.socket, request: dict[str, Any]) -> None:
        check(libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "tie a player to the one that forks them")
        namespace = os.open(request["namespace"], os.O_RDONLY)
        check(libc.setns(namespace, CLONE_NEWNET), "enter a host")
        os.close(namespace)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(request["env"])
        self.control = control
        self.round = -1

    def run(self) -> None:
        while (order := self.hear("play")) is not None:
            self.round = order["round"]
            before = resources()
            self.say("outcome", **self.play(order))
            self.say("clean", leaks=leaks(before))

    def hear(self, word: str, wait: bool = True) -> dict[str, Any] | None:
        """The next such word from above; None at the end, or when there is none and we do not ``wait``.

        What was meant for a round that this player has left is skipped.
        """
        while True:
            try:
                words = self.control.recv(1 << 16, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not words:
                return None
            heard: dict[str, Any] = json.loads(words)
            if heard["do"] == word and (word == "play" or heard["round"] == self.round):
                return heard

    def say(self, event: str, **fields: Any) -> None:
        self.control.send(json.dumps({"event": event, "round": self.round, "at": time.monotonic(), **fields}).encode())

    def play(self, order: dict[str, Any]) -> dict[str, Any]:
        """Join, work until rank 0 is told to finish, and tell how it ended."""
        os.environ.update(order["env"])
        begin = time.monotonic()
        report: dict[str, Any] = {"error": None, "phase": "join"}
        try:
            group = fabric.init(strict=True)
            try:
                report["phase"] = "work"
                self.say("joined", text=str(group.describe()))
                report["batches"] = self.work(group, order)
            except FerruleError as error:
                report |= outcome(error)
                if order["reform"]:
                    report["reformed"] = self.go_on(group, order)
            finally:
                group.close()
        except (FerruleError, WrongResult) as error:
            report |= outcome(error)
        return report | {"took": time.monotonic() - begin}

    def go_on(self, group: fabric.Group, order: dict[str, Any]) -> int:
        """Work on with those that are left; how many they are."""
        with group.reform(timeout=REFORM_SECONDS) as smaller:
            for number in range(3 if smaller.size > 1 else 0):
                batch(smaller, order["work"] + 1, number, order["largest"])
            smaller.barrier()
            return smaller.size

    def work(self, group: fabric.Group, order: dict[str, Any]) -> int:
        flag = np.zeros(1, np.int64)
        for number in range(1 << 30):
            if order["idle_after"] == number:
                self.say("idle")
                self.hear("resume")
            if group.rank == 0:
                flag[0] = self.hear("finish", wait=False) is None
            group.broadcast(flag, 0)
            if not flag[0]:
                group.barrier()
                return number
            batch(group, order["work"], number, order["largest"])
        raise AssertionError("rank 0 was never told to finish")


def outcome(error: Exception) -> dict[str, Any]:
    name, rank = type(error).__name__, getattr(error, "rank", None)
    return {"error": name, "text": str(error), "rank": rank, "noticed": time.monotonic()}


def resources() -> dict[str, int]:
    """Numbers of the resources that a group holds, counted for this process."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "segments": sum(1 for line in maps if "/dev/shm" in line or "/memfd:" in line),
    }


def leaks(before: dict[str, int]) -> list[str]:
    """Resources of which there are more than ``before``, after a moment in which they may settle."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        now = resources()
        found = [f"{now[name]} {name} instead of {before[name]}" for name in before if now[name] > before[name]]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.005)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

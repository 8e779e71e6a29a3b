"""A crowd of bad clients on loopback: connections that idle, trickle, do not read, are half closed, or break off."""

from __future__ import annotations

import gc
import itertools
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which closing sends a reset."""
ROUND_SECONDS = 0.25

BODY = {"model": "ferrule-demo", "prompt": "def main(", "max_tokens": 400, "stream": True, "ignore_eos": True}


def request(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


STREAM, WHOLE = request(BODY), request({**BODY, "stream": False})


@dataclass
class Client:
    """``rest``: what it sends bit by bit; ``rounds``: after how many it breaks off, or never."""

    kind: str
    socket: socket.socket
    rest: Iterator[int] = field(default_factory=lambda: iter(()))
    rounds: float = float("inf")

    def go_on(self) -> bool:
        """One round; whether it is still connected."""
        self.rounds -= 1
        if self.rounds < 0:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            return False
        try:
            for byte in itertools.islice(self.rest, 1):
                self.socket.send(bytes([byte]))
            if self.kind != "slow reader":
                return bool(self.socket.recv(1 << 16))
            return bool(self.socket.recv(1, socket.MSG_PEEK)) and bool(self.socket.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False


def connect(port: int, kind: str) -> Client:
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(10)
    plain.connect(("127.0.0.1", port))
    client = Client(kind, plain)
    match kind:
        case "trickle":
            client.rest = iter(STREAM)
        case "half a body":
            plain.sendall(STREAM[:-20])
        case "slow reader":
            plain.sendall(STREAM)
        case "half closed":
            plain.sendall(WHOLE)
            plain.shutdown(socket.SHUT_WR)
        case "breaks off":
            plain.sendall(STREAM)
            client.rounds = 2
    plain.setblocking(False)
    return client


def crowd(port: int, counts: dict[str, int]) -> None:
    """Keep so many clients of each kind connected until standard input ends; one that the server has cut off, or that
    broke off, comes again. Tells after each round how many are connected, and how many of each kind there were."""
    clients: list[Client] = []
    made: Counter[str] = Counter()
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.wait(ROUND_SECONDS):
        kept = []
        for client in clients:
            if client.go_on():
                kept.append(client)
            else:
                client.socket.close()
        there = Counter(client.kind for client in kept)
        for kind, count in counts.items():
            for _ in range(count - there[kind]):
                with suppress(ConnectionError, TimeoutError):
                    kept.append(connect(port, kind))
                    made[kind] += 1
        clients = kept
        sys.stdout.write(json.dumps([len(clients), made]) + "\n")
        sys.stdout.flush()


class Crowd:
    """`crowd` in a process of its own, so that it takes no time of who measures."""

    def __init__(self, port: int, counts: dict[str, int]) -> None:
        self.connected = 0
        self.made: dict[str, int] = {}
        command = [sys.executable, __file__, str(port), json.dumps(counts)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.process.wait(30) != 0:
            raise RuntimeError("the crowd has failed; its error is above")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.connected, self.made = json.loads(line)


def watch(ask: Callable[[], None], seconds: float, pause: float = 0.1) -> list[float]:
    """Seconds that each of the calls of ``ask`` took, one after the other for ``seconds``. Meanwhile this process does
    not collect garbage: with all that tests have imported that alone takes 150 ms."""
    took, end = [], time.monotonic() + seconds
    gc.disable()
    try:
        while time.monotonic() < end:
            begun = time.monotonic()
            ask()
            took.append(time.monotonic() - begun)
            time.sleep(pause)
    finally:
        gc.enable()
    return took


if __name__ == "__main__":
    crowd(int(sys.argv[1]), json.loads(sys.argv[2]))

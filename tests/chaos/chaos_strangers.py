"""Strangers that bother the ports of a group: with garbage, or with what they overheard."""

from __future__ import annotations

import contextlib
import random
import secrets
import select
import socket
import struct
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from chaos_arena import Arena
from chaos_plan import HOSTS, Plan

_ETH_P_ALL = 0x0003
_CONNECT_SECONDS = 0.2
_KEPT = 64


class Stranger:
    """Meanwhile, in a thread of its own, connects to every port on which a process listens and sends its bytes."""

    def __init__(self, arena: Arena, plan: Plan) -> None:
        self.arena = arena
        self.visits = 0
        self._chooser = random.Random(f"stranger {plan.work}")
        self._sources = sorted(set(plan.hosts))
        self._stop = threading.Event()
        self._open: deque[socket.socket] = deque()
        self._thread = threading.Thread(target=self._roam, name="stranger")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        for sock in self._open:
            sock.close()

    def words(self) -> bytes:
        """Bytes to send next; none means only to connect."""
        hello = b"FERRULE\0" + secrets.token_bytes(88)
        return self._chooser.choice(
            [
                b"",
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                b"\xff" * self._chooser.choice([1, 100, 100_000]),
                bytes(self._chooser.choice([95, 96, 97, 4096])),
                hello[: self._chooser.randrange(1, 97)],
                hello + secrets.token_bytes(self._chooser.choice([0, 31, 32, 5000])),
                secrets.token_bytes(self._chooser.randrange(1, 2000)),
            ]
        )

    def _roam(self) -> None:
        while not self._stop.is_set():
            for host in range(HOSTS):
                for address in self.arena.listening(host):
                    self._visit(address)
            self._stop.wait(0.003)

    def _visit(self, address: tuple[str, int]) -> None:
        with self.arena.lab.inside(self._chooser.choice(self._sources)):
            sock = socket.socket()
        sock.settimeout(_CONNECT_SECONDS)
        # It may be refused, or thrown out while it still talks.
        with contextlib.suppress(OSError):
            sock.connect(address)
            self.visits += 1
            sock.send(self.words())
        ending = self._chooser.choice(["close", "reset", "stay"])
        if ending == "stay":
            self._open.append(sock)
            if len(self._open) > _KEPT:
                self._open.popleft().close()
            return
        if ending == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


class Eavesdropper(Stranger):
    """Reads along on every host and says again what clients said: handshakes of this group and of earlier ones."""

    def __init__(self, arena: Arena, plan: Plan, overheard: deque[bytes]) -> None:
        super().__init__(arena, plan)
        self._overheard = overheard
        self._ears: list[socket.socket] = []
        self._streams: dict[tuple[bytes, bytes], bytearray] = {}
        self._next: dict[tuple[bytes, bytes], int] = {}

    def __enter__(self) -> Self:
        for host in range(HOSTS):
            with self.arena.lab.inside(host):
                self._ears.append(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL)))
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for ear in self._ears:
            ear.close()

    def words(self) -> bytes:
        self._listen()
        candidates = [*(bytes(stream) for stream in self._streams.values()), *self._overheard]
        return self._chooser.choice(candidates) if candidates else b""

    def _listen(self) -> None:
        while ready := select.select(self._ears, [], [], 0)[0]:
            for ear in ready:
                self._take(ear.recv(1 << 16))
        for stream in self._streams.values():
            if len(stream) > 96 and bytes(stream) not in self._overheard:
                self._overheard.append(bytes(stream))

    def _take(self, packet: bytes) -> None:
        """The payload of a TCP packet that begins or goes on what a client says; at most a handshake's worth."""
        if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            return
        header = (packet[0] & 15) * 4
        segment = packet[header : struct.unpack_from("!H", packet, 2)[0]]
        sequence, flags = struct.unpack_from("!I", segment, 4)[0], segment[13]
        flow = (packet[12:20], segment[:4])
        if flags & 0x12 == 0x02:  # SYN without ACK: a client
            self._next[flow] = (sequence + 1) & 0xFFFFFFFF
            self._streams[flow] = bytearray()
        payload = segment[(segment[12] >> 4) * 4 :]
        if payload and self._next.get(flow) == sequence and len(self._streams[flow]) < 1000:
            self._streams[flow] += payload
            self._next[flow] = (sequence + len(payload)) & 0xFFFFFFFF


def wait_until(moment: float) -> None:
    """Let time pass; a fault has its moment."""
    while (left := moment - time.monotonic()) > 0:
        select.select([], [], [], left)

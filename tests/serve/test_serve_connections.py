"""Clients that send nothing, send slowly, do not read, or come in large numbers must not hold the server up."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from running import running, served, until

from ferrule.serve.answer.sending import until_gone
from ferrule.serve.http import connections
from ferrule.serve.http.connections import HttpConfig
from ferrule.serve.http.logs import RepeatFilter
from ferrule.serve.server import Gate, Server

HEADER = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b'{"prompt": "ab", "max_tokens": 3}'


def connected(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 10)
    client.settimeout(10)
    return client


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def rest(client: socket.socket) -> bytes:
    """Bytes that the server sends until it closes the connection."""
    found = b""
    with client:
        try:
            while more := client.recv(1 << 16):
                found += more
        except ConnectionResetError:
            pass
    return found


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1 << 16))
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (HEADER, b"408 "),
        (HEADER + b"Content-Length: 100\r\n\r\n{", b"408 "),
        (HEALTH + b"GET /hea", b"408 "),
    ],
)
def test_a_request_that_is_not_completed_ends_its_connection(sent: bytes, told: bytes) -> None:
    with running(FakeEngine(), head=0.3, body=0.3) as url:
        client = connected(port_of(url))
        client.sendall(sent)
        begin = time.monotonic()
        answer = rest(client)
        assert time.monotonic() - begin < 5
        assert told in answer
        assert (answer == b"") == (sent == b"")
        if told:
            assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]["code"] == "timeout"


def test_bytes_that_trickle_in_do_not_move_the_deadline() -> None:
    with running(FakeEngine(), head=0.5) as url:
        client = connected(port_of(url))
        begin = time.monotonic()
        for byte in HEADER * 4:
            if not is_open(client):
                break
            client.settimeout(10)
            try:
                client.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.02)
        assert 0.4 < time.monotonic() - begin < 5
        client.close()


def test_many_that_are_late_at_once_are_ended_some_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    one_round = connections._end_late

    def watched(*args: Any) -> None:
        before = len(args[0].late)
        one_round(*args)
        rounds.append(before - len(args[0].late))

    monkeypatch.setattr(connections, "_end_late", watched)
    with running(FakeEngine(), head=0.5) as url, ExitStack() as stack:
        clients = [stack.enter_context(connected(port_of(url))) for _ in range(40)]
        assert httpx.get(f"{url}/health", timeout=5).status_code == 200
        until(lambda: not any(map(is_open, clients)))
    assert max(rounds) <= connections.AT_ONCE
    assert sum(rounds) >= 40


def test_more_connections_wait_than_are_accepted_at_once() -> None:
    async def main() -> tuple[int, ...]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = Server(HttpConfig(Gate()))
            task = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            counts = struct.unpack("II", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)[24:])
            server.should_exit = True
            await task
            return counts

    accepted_later, most = asyncio.run(main())  # of a socket that listens: tcpi_unacked and tcpi_sacked
    assert (accepted_later, most) == (0, min(connections.QUEUED, int(Path("/proc/sys/net/core/somaxconn").read_text())))


def test_a_request_that_takes_its_time_to_be_answered_is_not_cut_off() -> None:
    with running(FakeEngine(delay=0.2), head=0.3, body=0.3) as url:
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "ab", "max_tokens": 5}, timeout=10)
        assert answer.status_code == 200


def test_idle_connections_make_room_for_new_ones(caplog: pytest.LogCaptureFixture) -> None:
    with running(FakeEngine(), most=8) as url, ExitStack() as stack:
        idle = []
        for _ in range(40):
            idle.append(stack.enter_context(connected(port_of(url))))
        assert httpx.get(f"{url}/health", timeout=5).status_code == 200
        until(lambda: sum(map(is_open, idle)) <= 8)
        assert not is_open(idle[0]), "the one that has waited longest goes first"
        assert is_open(idle[-1])
        assert "8 connections are open" in caplog.text


def test_a_server_full_of_requests_refuses_new_connections() -> None:
    engine = FakeEngine(hold=asyncio.Event())
    with running(engine, most=2) as url, ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(connected(port_of(url)))
            client.sendall(HEADER + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        until(lambda: engine.active == 2)
        assert b"503 " in rest(connected(port_of(url)))


def test_a_client_that_does_not_read_is_cut_off() -> None:
    ended = threading.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(until_gone(receive))
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})
            await asyncio.sleep(0)
        ended.set()

    with served(endless, send=0.3) as port, connected(port) as client:
        client.sendall(HEALTH)
        assert ended.wait(10)


def test_a_message_that_repeats_is_logged_once_and_counted() -> None:
    once = RepeatFilter(seconds=60)
    records = [logging.LogRecord("x", logging.ERROR, "f", 1, "no descriptors: %s", (at,), None) for at in range(500)]
    assert [once.filter(record) for record in records] == [True] + [False] * 499
    assert once.filter(logging.LogRecord("x", logging.ERROR, "f", 1, "another", (), None))
    again = RepeatFilter(seconds=0)
    assert again.filter(records[0])
    assert again.filter(records[1])


@contextmanager
def process(log: Path, *, files: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process of its own that may open ``files`` files, and its URL."""
    with log.open("w") as out:
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("serve_fake.py"))],
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files // 2, files)),
        )
    assert child.stdout is not None
    try:
        yield child, child.stdout.readline().strip()
    finally:
        child.kill()
        child.wait(10)


@pytest.mark.slow
def test_more_idle_connections_than_descriptors(tmp_path: Path) -> None:
    with process(tmp_path / "log", files=320) as (child, url), ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(connected(port_of(url)))
        for _ in range(5):
            assert httpx.get(f"{url}/health", timeout=5).status_code == 200
        assert httpx.head(f"{url}/health", timeout=5).status_code == 200
        if sys.platform == "linux":
            assert len(list(Path(f"/proc/{child.pid}/fd").iterdir())) < 320
            assert Path(f"/proc/{child.pid}/limits").read_text().partition("Max open files")[2].split()[0] == "320"
    assert (tmp_path / "log").stat().st_size < 10_000


@pytest.mark.slow
def test_ctrl_c_while_a_prompt_is_tokenized_prints_no_traceback(tmp_path: Path) -> None:
    with process(tmp_path / "log", files=1024) as (child, url):
        with connected(port_of(url)) as client:
            body = json.dumps({"prompt": "slow " * 1000}).encode()
            client.sendall(HEADER + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert child.stdout is not None
            assert child.stdout.readline() == "tokenizing\n"
            child.send_signal(signal.SIGINT)
            assert b"503 " in client.recv(1000)
        assert child.wait(20) == 0
    assert (tmp_path / "log").read_text() == ""

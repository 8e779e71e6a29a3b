"""Clients that are gone without a word: what is computed for them ends within the time that is documented."""

from __future__ import annotations

import socket

import pytest
from fake_engine import FakeEngine
from running import served, until

from ferrule.lab import Lab, pair
from ferrule.serve.app import create_app

REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-api-key: k\r\nContent-Type: application/json\r\nContent-Length: "
)
BODY = b'{"prompt": "ab", "max_tokens": 500, "ignore_eos": true, "stream": %s}'


@pytest.mark.slow
def test_what_streams_and_what_waits_end_when_the_clients_host_is_gone(emulated_hosts: None) -> None:
    engine = FakeEngine(delay=0.1, max_context=4096)
    with Lab(pair()) as lab:
        with lab.inside(0):
            listener = socket.create_server((lab.address(0, 1), 0))
        listener.setblocking(False)
        with served(create_app(engine, api_key="k"), listener, vanished=2) as port:
            clients = []
            for kind in (b"true", b"false"):
                with lab.inside(1):
                    clients.append(socket.create_connection((lab.address(0, 1), port), 10))
                body = BODY % kind
                clients[-1].sendall(REQUEST + str(len(body)).encode() + b"\r\n\r\n" + body)
            until(lambda: engine.active == 2)
            assert clients[0].recv(4096).startswith(b"HTTP/1.1 200")
            lab.between(0, 1)[0].blackhole()
            until(lambda: engine.active == 0)
            assert [call.ended for call in engine.calls] == ["cancelled"] * 2
            for client in clients:
                client.close()

"""A crowd of bad clients at a real server: nothing is left of them, memory stays, and others are answered."""

from __future__ import annotations

from statistics import median

import httpx
import psutil
import pytest
from crowd import Crowd, watch
from server_process import Server, wait_until

COUNTS = {
    "idle": 600,
    "trickle": 150,
    "half a body": 150,
    "slow reader": 50,
    "half closed": 30,
    "breaks off": 20,
}
MOST_GROWTH = 24 << 20
"""Bytes: allocators keep what they have had for a while; a leak of what 1,000 connections need in a second is more."""
SOON = 0.05


def memory(server: Server) -> int:
    """Bytes of the server's own process."""
    return psutil.Process(server.process.pid).memory_info().rss


def left(server: Server) -> int:
    """Sequences that the server still has."""
    health = server.health().json()
    return int(health["running"] + health["waiting"])


@pytest.mark.parametrize(
    "seconds", [pytest.param(4.0, marks=pytest.mark.slow), pytest.param(60.0, marks=pytest.mark.soak)]
)
def test_a_crowd_of_bad_clients_leaves_nothing_behind(fresh_demo: Server, seconds: float) -> None:
    server = fresh_demo
    port = int(server.url.rpartition(":")[2])

    def healthy() -> None:
        assert client.get("/health").status_code == 200

    with httpx.Client(base_url=server.url, timeout=5) as client, Crowd(port, COUNTS) as crowd:
        wait_until(lambda: crowd.connected >= 900, 60, "the crowd is there")
        wait_until(lambda: client.get("/health").json()["running"] > 10, 60, "answers are made")
        watch(healthy, seconds / 2)
        half = memory(server)
        took = watch(healthy, seconds)
        grown = memory(server) - half
        answer = server.client(timeout=60).completions.create(model="ferrule-demo", prompt="def", max_tokens=3)
        assert answer.choices[0].text
    assert all(crowd.made[kind] >= count for kind, count in COUNTS.items()), crowd.made
    assert crowd.made["breaks off"] > COUNTS["breaks off"], "they come again"
    wait_until(lambda: left(server) == 0, 20, "the sequences are cancelled")
    assert grown < MOST_GROWTH, f"{grown} bytes more than at half time"
    assert len(psutil.Process(server.process.pid).net_connections()) < 20
    assert "Traceback" not in server.output
    if seconds >= 60:  # of a machine that has nothing else to do
        assert max(took) < SOON, f"/health took {max(took) * 1e3:.0f} ms, the median {median(took) * 1e3:.0f} ms"

"""What a user meets when a process dies, or when the server is stopped."""

from __future__ import annotations

import signal
import time

import httpx
import psutil
import pytest
from openai import APIError, APIStatusError
from server_process import Server, start_server, wait_until

pytestmark = pytest.mark.slow

SOON = 10.0
"""Seconds; a busy machine may need them for what takes a fraction of one on a quiet one."""


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("split", [("--tp", "2"), ("--pp", "2")])
def test_a_rank_killed_during_a_stream(victim: int, split: tuple[str, str]) -> None:
    server = start_server("--demo", *split)
    try:
        ranks = server.ranks()
        assert len(ranks) == 2
        stream = server.client(timeout=30).completions.create(
            model="ferrule-demo", prompt="def", max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
        )
        tokens = iter(stream)
        next(tokens)
        ranks[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(APIError, match=f"rank {victim} was killed by SIGKILL"):
            for _ in tokens:
                pass
        assert time.monotonic() - killed < SOON
        health = server.health()
        assert health.status_code == 503
        assert health.json()["status"] == "failed"
        assert f"rank {victim}" in health.json()["error"]
        wait_until(lambda: not any(rank.is_running() for rank in ranks), SOON, "the other ranks are gone")
        with pytest.raises(APIStatusError) as caught:
            server.client().completions.create(model="ferrule-demo", prompt="def")
        assert caught.value.status_code == 503
    finally:
        server.stop()


def test_ctrl_c_during_a_stream_ends_every_process_soon(fresh_demo: Server) -> None:
    processes = [psutil.Process(fresh_demo.process.pid), *fresh_demo.ranks()]
    stream = fresh_demo.client(timeout=30).completions.create(
        model="ferrule-demo", prompt="def", max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    fresh_demo.process.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(processes[1:], timeout=SOON)
    assert not alive
    assert fresh_demo.process.wait(SOON) in (0, 130)


def test_a_killed_server_leaves_no_rank_behind(fresh_demo: Server) -> None:
    ranks = fresh_demo.ranks()
    fresh_demo.process.kill()
    _, alive = psutil.wait_procs(ranks, timeout=SOON)
    assert not alive
    with pytest.raises(httpx.ConnectError):
        fresh_demo.health()

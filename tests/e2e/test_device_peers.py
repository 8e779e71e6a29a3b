"""A model whose ranks' devices exchange by themselves, and lose one another."""

from __future__ import annotations

import signal
from functools import partial

import pytest
from server_process import Server, start_server
from test_served_faults import ask, strike


@pytest.mark.soak
def test_answers_outlive_a_rank_whose_device_exchanges_by_itself(demo: Server) -> None:
    """Devices notice no loss: what they exchange with a lost rank ends with any numbers, of which no token is made."""
    command = ("--demo", "--tp", "2", "--device", "emulated", "--dtype", "float32")
    server = start_server(*command, env={"FERRULE_EMULATED_PEERS": "1", "FERRULE_DEVICE_PEERS": "always"})
    try:
        whole = ask(demo, "greedy", tokens=40)
        for count, number in enumerate((signal.SIGKILL, signal.SIGUSR1), start=1):
            ranks = server.ranks()
            assert ask(server, "greedy", partial(strike, ranks[1:], number), tokens=40) == whole
            health = server.health().json()
            assert health["recoveries"] == count
            assert "rank 1" in health["last_recovery"]["cause"]
    finally:
        server.stop()

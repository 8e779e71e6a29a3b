"""A model on a device that the planner chose, and on another one when that stays lost. This machine is measured."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest
from server_process import Server, start_server
from test_served_faults import LOST, ask, strike


@pytest.mark.soak
def test_the_planner_chooses_a_device_and_another_one_when_that_stays_lost(demo: Server, tmp_path: Path) -> None:
    server = start_server("demo", "--device", "emulated", "--dtype", "float32", env={LOST: str(tmp_path)})
    try:
        whole = ask(demo, "greedy", tokens=40)
        for _ in range(2):
            assert ask(server, "greedy", partial(strike, server.ranks(), signal.SIGUSR1), tokens=40) == whole
        health = server.health().json()
        assert health["status"] == "ok"
        assert "single: --tp 1 --pp 1" in server.output
        first, second = sorted(int(path.name) for path in tmp_path.iterdir())
        assert f"emulated:{first}" in health["note"]
        assert f"emulated:{second}" in health["note"]
        assert " stays lost, so the model runs with rank 0 on emulated:" in health["note"]
    finally:
        server.stop()

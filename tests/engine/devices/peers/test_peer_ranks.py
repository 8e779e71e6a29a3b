"""Devices of one host that exchange by themselves, in processes of their own: their choice, numbers and end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule.launch import LocalLauncher

pytestmark = pytest.mark.slow
RANK = Path(__file__).with_name("peer_rank.py")


def reports(case: str, hosts: list[str]) -> dict[int, dict[str, Any]]:
    """Reports of all ranks but rank 1, which is lost."""
    pipes = [os.pipe() for _ in hosts]
    env = {"OMP_NUM_THREADS": "1", "FERRULE_EMULATED_PEERS": "1", "FERRULE_CALIBRATE": "0"}
    launcher = LocalLauncher(
        [sys.executable, str(RANK), case],
        len(hosts),
        env=env,
        rank_env=[
            {"REPORT_FD": str(writer), "FERRULE_HOST_ID": host} for (_, writer), host in zip(pipes, hosts, strict=True)
        ],
        pass_fds=[[writer] for _, writer in pipes],
    )
    try:
        launcher.start()
    finally:
        for _, writer in pipes:
            os.close(writer)
    with launcher:
        found = {}
        for rank, (reader, _) in enumerate(pipes):
            with os.fdopen(reader) as lines:
                if rank != 1:
                    found[rank] = json.loads(lines.readline())
    return found


def test_the_devices_of_one_host() -> None:
    (found,) = reports("one host", ["a", "a"]).values()
    never, refused, broken, joined = found["choices"]
    assert never == broken == "StagedGroup"
    assert refused.startswith("FERRULE_DEVICE_PEERS=always, but devices of one host cannot: emulated:")
    assert joined == found["group"] == "PeerGroup"
    assert found["difference"] < 1e-5
    assert found["equal"]
    assert not found["gathered"], "rank 1 gathers"
    assert found["host"] == [0, 0, 0], "no wait and no copy"
    assert found["lost"] == "PeerLost 1, PeerLost"
    assert found["seconds"] < 5


def test_the_devices_of_two_hosts() -> None:
    """Rank 0 leads its host, rank 2 is alone: they sum over the fabric what ranks 0 and 1 have summed."""
    found = reports("two hosts", ["a", "a", "b"])
    for rank, each in found.items():
        assert each["group"] == "PeerGroup"
        assert each["difference"] < 0.04, "of bfloat16, which is rounded once more"
        assert each["equal"]
        assert each["host"] == [1, 1, 1], f"rank {rank} exchanges with the other leader"
        assert each["lost"] == "PeerLost 1, PeerLost"
        assert each["seconds"] < 5

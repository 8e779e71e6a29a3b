"""Devices that the cluster's planner chooses, on agents of this machine with the emulated accelerator."""

import signal

import pytest

from ferrule.lab import Lab, pair
from lab_hosts import Hosts, Stream, token_in

pytestmark = pytest.mark.slow

LOST = "FERRULE_EMULATED_LOST"
TOKENS = 30


def test_the_planner_chooses_devices_of_hosts_and_others_when_one_stays_lost(emulated_hosts, tmp_path, monkeypatch):
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.setenv(LOST, str(away))
    with Lab(pair()) as lab:
        hosts = Hosts(lab, tmp_path)
        token = token_in(hosts.run(0, "up", "--no-mdns"))
        hosts.run(1, "up", "--no-mdns", "--join", token)
        options = ("--dtype", "float32", "--device", "xpu,emulated:0,emulated:1", "--no-standby")
        hosts.run(0, "serve", "demo", *options, timeout=180)
        (row,) = hosts.models(0)
        assert row.state == "ready"
        assert set(row.hosts) <= {"host0", "host1"}
        assert "xpu is left out: " in row.note
        whole = Stream(hosts, TOKENS).rest()
        stream = Stream(hosts, TOKENS)
        stream.read(10)
        assert any(hosts.kill(host, "engine.rank.worker", signal.SIGUSR1, most=1) for host in (0, 1)), "one rank"
        assert stream.rest() == whole
        (row,) = hosts.models(0)
        assert row.state == "ready"
        assert " stays lost, so the model runs with rank 0 on " in row.note

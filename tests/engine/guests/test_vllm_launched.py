"""vLLM on hosts that `ferrule launch` has found: what each runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.engine.guests.vllm.launched import command
from ferrule.errors import ConfigError

PYTHON = Path("/engines/vllm/bin/python")
LAUNCHED = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29501",
    "GLOO_SOCKET_IFNAME": "thunderbolt0",
    "FERRULE_KEY": "ab" * 32,
    "FERRULE_ADDRESS": "10.0.0.1:4711",
    "PYTHONPATH": "/somewhere",
    "VLLM_PLUGINS": "other",
}
OPTIONS = ["/model", "--tensor-parallel-size", "2"]


def run(options: list[str] = OPTIONS, **changed: str) -> tuple[list[str], dict[str, str]]:
    ways, faces = {"10.0.0.1": "10.0.0.2"}, {"10.0.0.2": "eth0"}
    return command(LAUNCHED | changed, options, PYTHON, ways.__getitem__, faces.__getitem__)


def test_hosts_behind_the_first_have_ranks_alone() -> None:
    line, environ = run()
    assert line[:6] == [str(PYTHON), "-m", "ferrule.torch_backend.vllm", "serve", "/model", "--tensor-parallel-size"]
    text = " ".join(line)
    assert text.endswith("--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29501 --headless")
    assert environ["VLLM_HOST_IP"] == "10.0.0.2"
    assert environ["FERRULE_VLLM"] == "cpu"
    assert environ["VLLM_PLUGINS"] == "other,ferrule"
    assert environ["GLOO_SOCKET_IFNAME"] == "thunderbolt0"
    assert environ["FERRULE_KEY"] == "ab" * 32
    assert not {"PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"} & set(environ)


def test_where_an_agent_has_started_it_alone() -> None:
    """The key of that job is another one, and nothing is known of cables."""
    _, environ = run(FERRULE_VLLM_KEY="cd" * 32, GLOO_SOCKET_IFNAME="")
    assert environ["FERRULE_KEY"] == "cd" * 32
    assert "FERRULE_VLLM_KEY" not in environ
    assert environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_the_first_host_serves() -> None:
    line, environ = run(RANK="0")
    assert "--headless" not in line
    assert environ["VLLM_HOST_IP"] == "10.0.0.1"


def test_one_host() -> None:
    line, _ = run(RANK="0", WORLD_SIZE="1")
    assert "--nnodes" not in line


def test_what_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="one rank for each"):
        run(LOCAL_WORLD_SIZE="2")
    with pytest.raises(ConfigError, match="--master-port follows from the hosts"):
        run(["/model", "--master-port=1"])
    with pytest.raises(ConfigError, match="started by ferrule launch, which sets 'RANK'"):
        command({}, OPTIONS, PYTHON, str, str)

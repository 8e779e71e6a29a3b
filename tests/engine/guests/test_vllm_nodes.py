"""How vLLM is started on its hosts, and what plans it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ferrule.engine.guests.vllm.nodes import Node, Split, Work, environment, line, share_cores, split_of
from ferrule.errors import PlanError
from ferrule.model.layer import WHOLE, Share
from ferrule.plan import Plan, Stage

PYTHON = Path("/engines/vllm/bin/python")
ALONE = [Node("127.0.0.1", "lo", 2, 1, ((0,), (1,)))]
TWO = [Node("10.0.0.1", "eth0", 1, 4), Node("10.0.0.2", "eth1", 1, 4)]


def work(split: Split, meeting: tuple[str, int] | None = None) -> Work:
    return Work(Path("/model"), "model", split, "auto", 4096, 16, 512, 1 << 30, True, Path("/run/guest.sock"), meeting)


def option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


def test_one_host() -> None:
    words = line(PYTHON, work(Split(2, (8,))), ALONE, 0)
    assert words[:5] == [str(PYTHON), "-m", "ferrule.torch_backend.vllm", "serve", "/model"]
    assert option(words, "--tensor-parallel-size") == "2"
    assert option(words, "--pipeline-parallel-size") == "1"
    assert option(words, "--uds") == "/run/guest.sock"
    assert option(words, "--kv-cache-memory-bytes") == str(1 << 30)
    assert not {"--nnodes", "--headless", "--master-addr", "--host", "--port", "--api-key"} & set(words)


def test_hosts_meet_at_the_first_one_which_alone_serves() -> None:
    first, second = (line(PYTHON, work(Split(1, (5, 3)), ("10.0.0.1", 4711)), TWO, number) for number in (0, 1))
    for number, words in enumerate((first, second)):
        assert option(words, "--nnodes") == "2"
        assert option(words, "--node-rank") == str(number)
        assert option(words, "--master-addr") == "10.0.0.1"
        assert option(words, "--master-port") == "4711"
        assert option(words, "--distributed-executor-backend") == "mp"
        assert option(words, "--pipeline-parallel-size") == "2"
    assert "--headless" not in first
    assert "--headless" in second
    assert "--uds" not in second


def test_the_environment_leads_to_the_fabric() -> None:
    found = environment(TWO[1], work(Split(1, (5, 3))), "ab" * 32, {"VLLM_TARGET_DEVICE": "cpu"})
    assert found["FERRULE_VLLM"] == "cpu"
    assert found["FERRULE_KEY"] == "ab" * 32
    assert found["VLLM_TARGET_DEVICE"] is None
    assert found["VLLM_HOST_IP"] == "10.0.0.2"
    assert found["GLOO_SOCKET_IFNAME"] == "eth1"
    assert found["VLLM_PP_LAYER_PARTITION"] == "5,3"
    assert (found["VLLM_CPU_OMP_THREADS_BIND"], found["OMP_NUM_THREADS"]) == ("nobind", "4")
    assert "VLLM_PLUGINS" not in found
    bound = environment(ALONE[0], work(Split(2, (8,))), "ab" * 32, {})
    assert bound["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    assert "VLLM_PP_LAYER_PARTITION" not in bound


def test_stock_vllm_knows_nothing_of_the_fabric() -> None:
    alike = replace(work(Split(2, (8,))), stock=True)
    assert environment(ALONE[0], alike, "", {})["FERRULE_VLLM"] is None
    assert line(PYTHON, alike, ALONE, 0)[1:4] == ["-m", "vllm.entrypoints.cli.main", "serve"]
    assert line(PYTHON, alike, ALONE, 0)[4:] == line(PYTHON, work(Split(2, (8,))), ALONE, 0)[4:]


@pytest.mark.parametrize(
    ("given", "expected"), [("", "ferrule"), ("a,b", "a,b,ferrule"), ("ferrule,a", None), (None, None)]
)
def test_a_filter_of_plugins_lets_ours_pass(given: str | None, expected: str | None) -> None:
    outer = {} if given is None else {"VLLM_PLUGINS": given}
    assert environment(ALONE[0], work(Split(2, (8,))), "", outer).get("VLLM_PLUGINS") == expected


def stages(*widths: int, **options: bool) -> Plan:
    """Of four layers each."""
    found: list[Stage] = []
    for number, width in enumerate(widths):
        devices = tuple(f"stage {number}, {each}" for each in range(width))
        share = WHOLE if options.get("context") else Share.even(width)
        found.append(Stage(devices, 4 * number, 4 * number + 4, (share,) * width, **options))
    return Plan(tuple(found))


def test_plans() -> None:
    assert split_of(stages(1)) == Split(1, (4,))
    assert split_of(stages(2, 2)) == Split(2, (4, 4))
    with pytest.raises(PlanError, match="same number of equal parts"):
        split_of(stages(2, 1))
    uneven = Stage(("a", "b"), 0, 4, (Share.even(3), WHOLE))
    with pytest.raises(PlanError, match="--shares"):
        split_of(Plan((uneven,)))
    with pytest.raises(PlanError, match="--cp"):
        split_of(stages(2, context=True))
    with pytest.raises(PlanError, match="--expert-parallel"):
        split_of(stages(2, experts=True))


def test_cores() -> None:
    assert share_cores([4, 5, 6, 7], 2, 2) == ((4, 5), (6, 7))
    assert share_cores([4, 5, 6], 2, 2) == ()

"""vLLM itself, from the environment that `ferrule engines install vllm` makes: minutes for each case.

Run them with ``pytest -m vllm tests/engine/guests/test_vllm_real.py``; those on two hosts need root.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers

from ferrule.bench.random_model import RandomModel, save_random_model
from ferrule.engine import EngineOptions, SamplingParams
from ferrule.engine.guests.engine import GuestEngine
from ferrule.engine.guests.start import start_guest
from ferrule.engine.guests.vllm.guest import VllmGuest
from ferrule.lab import Lab, pair

INSTALLED = pytest.mark.skipif(VllmGuest().find() is None, reason="needs vLLM: ferrule engines install vllm")
pytestmark = [pytest.mark.soak, pytest.mark.vllm, INSTALLED]
SHAPE = RandomModel("vllm-random", 128, 256, 4, 4, 2, 4096)  # its kernels for processors want heads of 32 numbers
PROMPTS = [list(range(300, 340)), list(range(500, 560))]
TOKENS = 24
LONG = 400
NOTICED = 20.0
"""Seconds within which a killed process has to be noticed: vLLM itself waits 300 s for one on another host."""
SPLITS = pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)], ids=["tp", "pp"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / SHAPE.name, SHAPE)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """Greedy answers of transformers; the last one is long."""
    alone = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found = []
    for prompt, count in zip([*PROMPTS, PROMPTS[0]], [TOKENS, TOKENS, LONG], strict=True):
        made = alone.generate(torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False)
        found.append(made[0][len(prompt) :].tolist())
    return found


async def answer(engine: GuestEngine, prompt: list[int], count: int, at: int = -1, then: Any = None) -> list[int]:
    """``then`` is called at the token ``at``."""
    made = []
    async with aclosing(engine.generate(prompt, SamplingParams(count, 0.0, ignore_eos=True))) as stream:
        async for token in stream:
            made.append(token.id)
            if len(made) == at:
                then()
    return made


def workers(among: list[int]) -> list[int]:
    """The processes of vLLM that compute."""
    return [pid for pid in among if "VLLM::Worker" in " ".join(psutil.Process(pid).cmdline())]


def sent(lab: Lab, cable: int) -> int:
    """Bytes that both hosts have sent over it."""
    path = f"/sys/class/net/cable{cable}/statistics/tx_bytes"
    told = [subprocess.check_output(lab.command(host, ["cat", path]), timeout=30) for host in range(2)]
    return sum(map(int, told))


def options(model: Path, tensor: int, pipeline: int) -> EngineOptions:
    return EngineOptions(str(model), tensor, pipeline, "float32", max_context=512, max_sequences=8, self_test=False)


async def served(engine: GuestEngine, expected: list[list[int]], kill: Any) -> None:
    """Answers are right, also one during which ``kill`` takes a process away."""
    both = await asyncio.gather(*(answer(engine, prompt, TOKENS) for prompt in PROMPTS))
    assert both == expected[:2]
    killed: list[float] = []

    def then() -> None:
        kill()
        killed.append(time.time())

    assert await answer(engine, PROMPTS[0], LONG, 20, then) == expected[2]
    health = engine.health()
    assert health.state == "ready"
    assert health.recoveries == 1
    assert health.last_recovery is not None
    assert health.last_recovery.at - killed[0] < NOTICED


@SPLITS
def test_one_machine(model: Path, expected: list[list[int]], tensor: int, pipeline: int) -> None:
    async def run() -> None:
        engine = await start_guest(VllmGuest(), options(model, tensor, pipeline))
        try:

            def kill() -> None:
                below = psutil.Process(engine.ranks[0].pid).children(recursive=True)
                os.kill(workers([each.pid for each in below])[-1], signal.SIGKILL)

            await served(engine, expected, kill)
        finally:
            await engine.close()

    asyncio.run(run())


@SPLITS
def test_two_hosts(
    model: Path, expected: list[list[int]], tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gloo is told the second cable, and the fabric the first: what goes over the second one is gloo's."""
    if os.geteuid() != 0:
        pytest.skip("hosts of a lab that other programs enter need root")
    monkeypatch.setenv("FERRULE_INTERFACES", "cable0")

    async def run(lab: Lab) -> None:
        engine = await start_guest(VllmGuest(), options(model, tensor, pipeline), lab=lab)
        try:
            await answer(engine, PROMPTS[1], 2)  # what is made on first use
            before = [sent(lab, cable) for cable in range(2)]
            await answer(engine, PROMPTS[0], TOKENS)
            fabric, gloo = (sent(lab, cable) - start for cable, start in enumerate(before))
            hidden = SHAPE.hidden * 4 * (TOKENS + len(PROMPTS[0]))
            assert fabric > hidden
            assert gloo < hidden / 100, "tensors went over gloo"
            await served(engine, expected, lambda: os.kill(workers(lab.processes(1))[0], signal.SIGKILL))
        finally:
            await engine.close()

    with Lab(pair(cables=2)) as lab:
        asyncio.run(run(lab))


ASK = """
import sys, time, urllib.request
url, kind = "http://127.0.0.1:8000/v1/completions", {"Content-Type": "application/json"}
asked = urllib.request.Request(url, sys.argv[1].encode(), kind)
for _ in range(600):
    try:
        print(urllib.request.urlopen(asked, timeout=300).read().decode())
        break
    except OSError:
        time.sleep(1)
"""


def test_hosts_of_a_launcher(model: Path, expected: list[list[int]]) -> None:
    """What `ferrule launch` starts on each host, with the variables that it sets there; vLLM's own server."""
    if os.geteuid() != 0:
        pytest.skip("hosts of a lab that other programs enter need root")
    program = [sys.executable, "-m", "ferrule.engine.guests.vllm.launched", str(model)]
    flags = "--tensor-parallel-size 2 --dtype float32 --enforce-eager --max-model-len 512 --host 127.0.0.1"
    with Lab(pair()) as lab:
        common = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": lab.address(0, 1),
            "MASTER_PORT": "29501",
            "GLOO_SOCKET_IFNAME": "cable0",
            "FERRULE_KEY": "ab" * 32,
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        words = [*program, *flags.split(), "--kv-cache-memory-bytes", str(64 << 20), "--served-model-name", "model"]
        started = [lab.popen(host, words, env=common | {"RANK": str(host)}) for host in range(2)]
        try:
            asked = {"model": "model", "prompt": PROMPTS[0], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            command = lab.command(0, [sys.executable, "-c", ASK, json.dumps(asked | {"return_token_ids": True})])
            told = subprocess.run(command, capture_output=True, timeout=900, check=True, text=True).stdout
            assert json.loads(told)["choices"][0]["token_ids"] == expected[0]
            assert [process.poll() for process in started] == [None, None]
        finally:
            for process in started:
                process.kill()
                process.wait(60)

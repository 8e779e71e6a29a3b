"""A model that is served by ranks on accelerators, and on different devices, answers as one on processors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from server_process import Server, start_server

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What does json.dumps do?"}]


def answer(server: Server) -> str:
    found = server.client().chat.completions.create(
        model="ferrule-demo",
        messages=QUESTION,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=32,
    )
    assert found.choices[0].message.content
    return found.choices[0].message.content


@pytest.mark.parametrize("devices", ["emulated", "cpu,emulated"])
def test_the_answer_is_that_of_processors(devices: str) -> None:
    texts = []
    for device in ("cpu", devices):
        server = start_server("--demo", "--dtype", "float32", "--device", device)
        try:
            texts.append(answer(server))
            assert server.output.count("emulated:0") == (device != "cpu")
        finally:
            server.stop()
    assert texts[0] == texts[1]


@pytest.mark.skipif(torch.xpu.is_available(), reason="this machine has an Intel GPU")
def test_a_device_that_is_not_here_is_told_with_what_it_takes() -> None:
    command = [sys.executable, "-m", "ferrule.cli.main", "generate", "demo", "Hello", "--device", "xpu"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert ended.returncode != 0
    assert "device xpu: torch" in ended.stderr
    assert "Intel GPU" in ended.stderr

"""`ferrule serve --engine llama.cpp` from end to end, with a small llama-server in the real one's place."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from gguf_models import write
from guest_engines import on_the_path
from openai import BadRequestError
from server_process import start_server

pytestmark = pytest.mark.slow


def test_a_guest_behind_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers, what it refuses, a crash, and that nothing of it outlives a server that is killed."""
    file, _ = write("llama", tmp_path / "model")
    on_the_path(tmp_path, monkeypatch, vocabulary=131)
    server = start_server(str(file), "--engine", "llama.cpp", "--name", "tiny")
    try:
        client = server.client()
        asked = {"model": "tiny", "prompt": [5, 9], "temperature": 0, "max_tokens": 12}
        first = client.completions.create(**asked)
        assert first.usage.completion_tokens == 12
        assert first.choices[0].finish_reason == "length"
        with pytest.raises(BadRequestError, match=r"presence_penalty: the engine llama\.cpp does not do this"):
            client.completions.create(**asked, presence_penalty=1.0)
        (card,) = client.models.list().data
        assert "structured_output" in card.capabilities
        assert "embeddings" not in card.capabilities

        programs = psutil.Process(server.process.pid).children(recursive=True)
        (guest,) = [each for each in programs if str(tmp_path / "llama-server") in each.cmdline()[:3]]
        stream = client.completions.create(**asked | {"max_tokens": 200}, stream=True)
        texts = [next(stream).choices[0].text]
        guest.kill()
        texts += [each.choices[0].text for each in stream if each.choices]
        assert "".join(texts) == client.completions.create(**asked | {"max_tokens": 200}).choices[0].text
        assert server.health().json()["recoveries"] == 1

        programs = psutil.Process(server.process.pid).children(recursive=True)
        assert programs
        os.kill(server.process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(programs, timeout=30)
        assert not alive
    finally:
        server.stop()

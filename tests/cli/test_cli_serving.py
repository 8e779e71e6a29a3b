"""`ferrule serve`, `chat` and `generate` as processes, with a scripted engine behind them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import TEXT, FakeEngine
from running import running, until
from typer.testing import CliRunner

from ferrule.cli.display import speed_text
from ferrule.cli.main import app
from ferrule.cli.serving import generate
from ferrule.engine.host.speed import Speed
from ferrule.engine.options import Adapter
from ferrule.plan.prediction import Between

HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(HERE.parent / "serve"), str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")])
FAKE = [sys.executable, str(HERE / "fake_ferrule.py")]
TIMEOUT = 30
SOON = 5.0
"""Seconds; a quiet machine needs a fraction of one."""


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FERRULE_")}
    return {**kept, "PYTHONPATH": PATHS, "NO_COLOR": "1", "COLUMNS": "100", **more}


@contextmanager
def serving(*words: str, ready: bool = True, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and what it printed until it was ready."""
    command = [*FAKE, "serve", "acme/fake-1b", "--port", "0", *words]
    with subprocess.Popen(
        command, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        try:
            told = ""
            for line in process.stdout:
                told += line
                if "Ctrl-C" in line or (not ready and "load" in line):
                    break
            yield process, told
        finally:
            process.kill()


def answer_of(command: list[str]) -> str:
    """Answer that ``curl`` would get, with httpx in its place where curl is not installed."""
    url, body = command[1], command[command.index("-d") + 1]
    headers = [command[at + 1].split(": ", 1) for at, word in enumerate(command) if word == "-H"]
    response = httpx.post(url, content=body, headers=dict(headers), timeout=TIMEOUT)
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


def test_serve_shows_what_it_does_and_stops_at_once() -> None:
    words = ("--api-key", "sesame", "--adapter", "poet=owner/poet", "--adapter", "sql=owner/sql")
    with serving(*words, FAKE_DELAY="0.02") as (process, told):
        assert "rank 0: load 2 MiB" in told
        assert "rank 1: warm up" in told
        assert "acme/fake-1b is served at http://127.0.0.1:" in told
        assert "tensor" in told
        assert "adapters: acme/fake-1b:poet, acme/fake-1b:sql" in told
        assert re.search(r"0 +4000 +embed, 0–7, head +1/2 +976.6 KiB +shm +cpu", told)
        (line,) = [line for line in told.splitlines() if line.startswith("curl ")]
        command = shlex.split(line.replace("$FERRULE_API_KEY", "sesame"))
        assert answer_of(command) == TEXT
        body = {**json.loads(command[command.index("-d") + 1]), "stream": True}
        headers = {"Authorization": "Bearer sesame"}
        with httpx.stream("POST", command[1], json=body, headers=headers, timeout=TIMEOUT) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGINT)
            begin = time.monotonic()
            rest = "".join(lines)
        assert process.wait(TIMEOUT) == 0
        assert time.monotonic() - begin < SOON
        assert "shutting down" in rest or "closed" in rest, "the stream says why it ends"
        assert process.stderr
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_serve_can_be_stopped_while_it_loads() -> None:
    with serving(ready=False, FAKE_SLOW_START="60") as (process, _):
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
        assert time.monotonic() - begin < SOON


@pytest.mark.slow
def test_serve_stays_when_the_engine_fails_and_says_so_once() -> None:
    with serving(FAKE_FAIL="3") as (process, told):
        found = re.search(r"http://127\.0\.0\.1:\d+", told)
        assert found
        url = found[0]
        for _ in range(2):
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "hi"}, timeout=TIMEOUT)
            assert answer.status_code == 503
        until(lambda: httpx.get(f"{url}/health").json()["status"] == "failed")
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503
        assert "rank 1" in health.json()["error"]
        # The reason is logged when the engine's health is next looked at.
        assert process.stderr
        assert "rank 1" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
        assert process.stderr.read() == ""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(FakeEngine(text="Hello there, 你好.")) as url:
        yield url


def chat(*words: str, said: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ferrule.cli.main", "chat", *words],
        input=said,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def test_chat_once(url: str) -> None:
    for address in (url, f"{url}/v1/", url.removeprefix("http://")):
        done = chat(address, "--once", "hi")
        assert (done.returncode, done.stdout, done.stderr) == (0, "Hello there, 你好.\n", "")


def test_chat_reads_messages_from_a_pipe_and_remembers() -> None:
    engine = FakeEngine(text="Yes.")
    with running(engine) as url:
        done = chat(url, "--system", "Be brief.", "--temperature", "0", said="one\n\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "Yes.\nYes.\n")
    assert engine.tokenizer.decode(engine.calls[1].prompt, skip_special_tokens=False) == (
        "<|system|>Be brief.<|end|><|user|>one<|end|><|assistant|>Yes.<|end|><|user|>two<|end|><|assistant|>"
    )
    assert engine.calls[0].params.temperature == 0


@pytest.mark.slow
def test_chat_tells_what_went_wrong(url: str) -> None:
    done = chat(url, "--once", "hi", "--model", "other")
    assert (done.returncode, done.stdout) == (2, "\n")
    assert "'other' is not served here" in done.stderr
    with running(FakeEngine(), api_key="sesame") as locked:
        assert chat(locked, "--once", "hi").returncode == 2
        assert "API key" in chat(locked, "--once", "hi", FERRULE_API_KEY="wrong").stderr
        assert chat(locked, "--once", "hi", FERRULE_API_KEY="sesame").stdout == TEXT + "\n"
    with running(FakeEngine(fail_after=4)) as failing:
        done = chat(failing, "--once", "hi")
        assert done.returncode == 6
        assert "rank 1" in done.stderr
        assert TEXT.startswith(done.stdout.strip())


def test_chat_stops_quietly_on_ctrl_c() -> None:
    engine = FakeEngine(delay=0.05)
    command = [sys.executable, "-m", "ferrule.cli.main", "chat"]
    with (
        running(engine) as url,
        subprocess.Popen(
            [*command, url, "--once", "hi"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        until(lambda: bool(engine.calls) and engine.calls[0].made > 2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT)
        assert (process.returncode, errors) == (130, "")
        until(lambda: engine.active == 0)
    assert engine.calls[0].ended == "cancelled"


def test_generate_prints_the_answer() -> None:
    done = subprocess.run(
        [*FAKE, "generate", "demo", "-", "--raw", "--stop", " fox"],
        input="Say: ",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "Say: The quick brown\n")
    assert "rank 0: load 2 MiB" in done.stderr


def test_generate_answers_with_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def answer(options: Any, prompt: str, given: dict[str, Any], *_: Any, **__: Any) -> None:
        seen.append((options.adapters, prompt, given))

    monkeypatch.setattr(generate, "answer", answer)
    done = CliRunner().invoke(app, ["generate", "demo", "Hi", "--adapter", f"poet={tmp_path}", "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert seen == [((Adapter("poet", str(tmp_path)),), "Hi", {"seed": 3, "adapter": "poet"})]
    refused = CliRunner().invoke(app, ["generate", "demo", "Hi", "--adapter", "poet"])
    assert (refused.exit_code, len(seen)) == (2, 1)
    assert "NAME=PATH" in refused.output


@pytest.mark.slow
def test_chat_on_a_terminal() -> None:
    engine = FakeEngine(text="Yes indeed.", delay=0.05)
    ours, theirs = pty.openpty()
    with running(engine) as url, os.fdopen(ours, "rb+", buffering=0) as terminal:
        command = [sys.executable, "-m", "ferrule.cli.main", "chat", url]
        process = subprocess.Popen(
            command, env=environment(TERM="dumb"), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        seen = b""

        def expect(text: bytes) -> None:
            nonlocal seen
            deadline = time.monotonic() + TIMEOUT
            while text not in seen:
                ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
                assert ready, f"{text!r} did not come, only {seen!r}"
                seen += terminal.read(1024)
            seen = seen.split(text, 1)[1]

        try:
            expect(b"> ")
            terminal.write(b"one\n")
            expect(b"indeed.")
            expect(b"> ")
            engine.delay = 0.3  # so that the signal comes before the answer's end
            terminal.write(b"two\n")
            expect(b"Yes")
            process.send_signal(signal.SIGINT)
            expect(b"cut short")
            engine.delay = 0.05
            expect(b"> ")
            terminal.write(b"/wrong\n")
            expect(b"no such command")
            terminal.write(b"/reset\n")
            expect(b"forgotten")
            engine.fail_after = 0
            terminal.write(b"three\n")
            expect(b"error: the server reports: rank 1")
            terminal.write(b"/exit\n")
            assert process.wait(TIMEOUT) == 0
        finally:
            process.kill()
    until(lambda: engine.active == 0)
    asked = [engine.tokenizer.decode(call.prompt, skip_special_tokens=False) for call in engine.calls]
    assert "one<|end|><|assistant|>Yes indeed.<|end|><|user|>two" in asked[1]
    assert asked[2] == "<|user|>three<|end|><|assistant|>"
    assert engine.calls[1].ended == "cancelled"


def test_a_speed_is_told_beside_what_was_expected() -> None:
    assert speed_text(Speed(9.0)) == "9 tokens/s for one stream, measured just now"
    assert speed_text(Speed(1749.6)).startswith("1,750 tokens/s")
    found = Speed(9.0, 10.0, Between(8.2, 12.2))
    assert speed_text(found).endswith("measured just now; the planner predicted 10 (8.2 to 12.2)")
    assert speed_text(replace(found, guessed=True)).endswith("12.2), as of another family: this one is not known")

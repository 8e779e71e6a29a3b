"""Secrets are in no log, error, answer or command line, whatever goes wrong."""

from __future__ import annotations

import json
import os
import secrets
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from server_process import Server, start_server, wait_until

from ferrule.serve.keys.record import ApiKey, add_key, digest_of, new_key

pytestmark = pytest.mark.slow

FREE = {"prompt": "def", "max_tokens": 3}


def command_lines() -> Iterator[str]:
    """Of all processes of this machine."""
    for process in psutil.process_iter():
        try:
            yield "\0".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def made_key(file: Path, name: str, **fields: float) -> str:
    key = new_key()
    add_key(file, ApiKey(name, digest_of(key.encode()), key[:8], time.time(), **fields))  # type: ignore[arg-type]
    return key


def provoke(server: Server, client: httpx.Client, good: list[str], bad: list[str], prompt: str) -> list[str]:
    """Errors of all kinds; what was answered."""
    answers = []

    def ask(key: str, path: str = "/v1/completions", *, kept: bool = True, **told: object) -> None:
        headers = {"Authorization": f"Bearer {key}"} | told.pop("headers", {})  # type: ignore[operator]
        method = "POST" if told else "GET"
        answer = client.request(method, path, headers=headers, **told)  # type: ignore[arg-type]
        if kept:
            answers.append(f"{answer.status_code} {answer.headers} {answer.text}")

    for key in good:
        ask(key, json=FREE)
        ask(key, json=FREE | {"model": prompt})
        ask(key, json=FREE | {"temperature": prompt})
        # In another place than the header: the answer may repeat it, no log may.
        ask(key, json=FREE | {"model": key}, kept=False)
        ask(key, path=f"/v1/models/{key}", kept=False)
        ask(key, path=f"/{key}?key={key}", kept=False)
        ask(key, json={"prompt": prompt, "logit_bias": {prompt: 1}})
        ask(key, content=f'{{"prompt": {prompt}', headers={"Content-Type": "application/json"})
        ask(key, content=prompt, headers={"Content-Type": "text/plain"})
        ask(key, headers={f"x-{at}": key for at in range(120)})
        ask(key, json=FREE | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": prompt}}}})
    for key in bad:
        ask(key, json=FREE)
    before = client.get("/health").json()["recoveries"]
    server.ranks()[1].kill()
    ask(good[0], json=FREE | {"max_tokens": 20})
    wait_until(lambda: client.get("/health").json()["recoveries"] > before, 60, "the ranks are back")
    ask(good[0], json=FREE)
    return answers


def test_no_secret_is_told_whatever_goes_wrong(tmp_path: Path) -> None:
    keys, log, state = tmp_path / "keys.json", tmp_path / "requests.log", tmp_path / "state"
    one, hub, prompt = (f"{name}-{secrets.token_hex(12)}" for name in ("one", "hf", "prompt"))
    named = made_key(keys, "laptop")
    expired = made_key(keys, "old", expires=1.0)
    env = {"FERRULE_KEYS_FILE": str(keys), "FERRULE_STATE": str(state), "FERRULE_API_KEY": one, "HF_TOKEN": hub}
    env |= {"FERRULE_TLS_SELF": "1", "FERRULE_REQUEST_LOG": str(log), "FERRULE_DEBUG": "1"}
    server = start_server("--demo", env=env)
    try:
        trusting = ssl.create_default_context(cafile=state / "tls" / "cert.pem")
        with httpx.Client(base_url=server.url, verify=trusting, timeout=90) as client:
            answers = provoke(server, client, [one, named], [f"x{one}", expired], prompt)
        lines = list(command_lines())
        assert sum("ferrule" in line for line in lines) >= 3
    finally:
        server.stop()
    for status in ("200", "400", "401", "404", "415", "431"):
        assert any(answer.startswith(status) for answer in answers), status
    hubs = subprocess.run(
        [sys.executable, "-m", "ferrule", "--debug", "generate", "acme/none", "hello"],
        env={**os.environ, **env, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_ETAG_TIMEOUT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert hubs.returncode != 0
    private = (state / "tls" / "key.pem").read_text().splitlines()[1]
    written = [file for file in (*state.rglob("*"), log, keys) if file.is_file() and file.name != "key.pem"]
    told = {
        "its output": server.output,
        "its answers": "\n".join(answers),
        "command lines": "\n".join(lines),
        "errors of the hub": hubs.stdout + hubs.stderr,
        **{file.name: file.read_text(errors="replace") for file in written},
    }
    hidden = {"one key": one, "named key": named, "expired key": expired, "hub's token": hub, "private key": private}
    found = [
        f"{name} in {where}: {text[max(0, text.index(secret) - 200) :][:400]}"
        for name, secret in hidden.items()
        for where, text in told.items()
        if secret in text
    ]
    assert found == []
    assert "laptop" in told["requests.log"]
    assert prompt not in told["requests.log"] + server.output
    assert len([json.loads(line) for line in told["requests.log"].splitlines()]) >= len(answers)

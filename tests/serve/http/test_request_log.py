"""The request log tells who asked what and how long it took, and nothing of what was said."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from running import served, until

from ferrule.errors import ConfigError
from ferrule.serve.app import create_app
from ferrule.serve.http.request_log import RequestLog


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_for_each_request_without_its_contents(tmp_path: Path) -> None:
    file = tmp_path / "requests.log"
    log = RequestLog(str(file))
    engine = FakeEngine(delay=0.01)
    with served(log.around(create_app(engine, api_key="secret-key"))) as port:
        url, head = f"http://127.0.0.1:{port}", {"Authorization": "Bearer secret-key"}
        with httpx.Client(base_url=url, headers=head) as client:
            body = {"model": "acme/fake-1b", "prompt": "private words", "max_tokens": 5}
            usage = client.post("/v1/completions", json=body).json()["usage"]
            client.post("/v1/completions", json=body | {"stream": True})
            client.post("/v1/completions", json=body | {"model": "private-model"})
            client.post("/v1/completions", json=body, headers={"Authorization": "Bearer wrong-key"})
            client.get("/v1/models/secret-key")
            client.get("/secret-key?private=1")
            client.get("/health")
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=body | {"max_tokens": 400, "ignore_eos": True}, timeout=0.3)
            until(lambda: engine.active == 0 and len(lines(file)) == 8)
    moved = file.rename(tmp_path / "old.log")
    log.close()
    whole, stream, unknown, wrong, card, no_path, health, left = sorted(lines(moved), key=lambda line: line["time"])
    assert (whole["key"], whole["model"], whole["path"]) == ("api-key", "acme/fake-1b", "/v1/completions")
    assert (whole["method"], whole["status"], whole["client"]) == ("POST", 200, "127.0.0.1")
    for each in (whole, stream):
        assert (each["prompt_tokens"], each["completion_tokens"]) == (usage["prompt_tokens"], 5)
        assert 0.01 <= each["first_token"] < each["seconds"] < 10
    assert abs((datetime.now(UTC) - datetime.fromisoformat(whole["time"])).total_seconds()) < 60
    assert (unknown["status"], unknown["model"]) == (404, None)
    assert (wrong["status"], wrong["key"], wrong["path"]) == (401, None, "/v1/completions")
    assert (card["status"], card["path"]) == (404, "/v1/models/{name:path}")
    assert (no_path["status"], no_path["path"]) == (404, None)
    assert (health["status"], health["first_token"]) == (200, None)
    assert (left["status"], left["completion_tokens"] > 0) == (499, True)
    text = moved.read_text()
    assert not any(each in text for each in ("secret", "wrong", "private", "quick"))
    assert moved.stat().st_mode & 0o777 == 0o600


def test_a_log_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "requests.log"
    log = RequestLog(str(file))
    with served(log.around(create_app(FakeEngine(), api_key=None))) as port:
        for at in range(2):
            httpx.get(f"http://127.0.0.1:{port}/health")
            until(lambda: file.exists() and len(lines(file)) == 1)
            file.rename(tmp_path / f"old-{at}")
    log.close()


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        RequestLog(str(tmp_path / "none" / "requests.log"))

"""Priorities, fair queues and timeouts of requests, as clients ask for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from running import running
from starlette.testclient import TestClient

from ferrule.serve.answer.turns import QUEUE_CHARACTERS, TurnAsked, granted
from ferrule.serve.app import create_app
from ferrule.serve.http.errors import ApiError
from ferrule.serve.keys.keyring import Caller
from ferrule.serve.keys.record import ApiKey, add_key, digest_of, new_key

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def test_a_key_bounds_what_its_requests_may_ask_for() -> None:
    anyone, batch = Caller(), Caller("batch", identity="ab" * 32, priority=2)
    assert granted(TurnAsked(), anyone).priority == 0
    assert granted(TurnAsked(-7), anyone).priority == -7
    tiers = [TurnAsked(tier=tier) for tier in ("priority", "flex", "auto", "?")]
    assert [granted(asked, anyone).priority for asked in tiers] == [-1, 1, 0, 0]
    assert [granted(asked, batch).priority for asked in tiers] == [2, 3, 2, 2]
    assert granted(TurnAsked(), batch).priority == 2
    assert granted(TurnAsked(5, "priority"), batch).priority == 5
    assert granted(TurnAsked(), batch).queue == "ab" * (QUEUE_CHARACTERS // 2)
    assert granted(TurnAsked(), anyone).queue == ""
    with pytest.raises(ApiError, match="priority: 0 is before 2, the priority of the key 'batch'") as refused:
        granted(TurnAsked(0), batch)
    assert refused.value.status == 403


def test_turns_reach_the_engine_by_every_api(tmp_path: Path) -> None:
    file, engine, key = tmp_path / "keys.json", FakeEngine(), new_key()
    digest = digest_of(key.encode())
    add_key(file, ApiKey("one", digest, key[:8], 0.0, priority=-4))
    asked: list[tuple[str, dict[str, Any], int]] = [
        ("/v1/chat/completions", CHAT, -4),
        ("/v1/chat/completions", {**CHAT, "priority": 7}, 7),
        ("/v1/completions", {"prompt": "a", "priority": -3, "n": 2}, -3),
        ("/v1/responses", {"input": "a", "service_tier": "flex"}, -3),
        ("/v1/messages", {"model": engine.name, **CHAT}, -4),
        ("/api/generate", {"model": engine.name, "prompt": "a"}, -4),
    ]
    with running(engine, keys=file) as url, httpx.Client(base_url=url, headers={"x-api-key": key}) as client:
        for path, body, priority in asked:
            assert client.post(path, json=body).is_success
            turn = engine.calls[-1].params.turn
            assert (turn.priority, turn.queue) == (priority, digest[:QUEUE_CHARACTERS]), path
        made = len(engine.calls)
        refused = client.post("/v1/chat/completions", json={**CHAT, "priority": -5})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "priority_not_allowed")
        assert len(engine.calls) == made
        for bad in ({"priority": 101}, {"priority": "soon"}, {"queue_timeout": 0}, {"queue_timeout": 1e9}):
            assert client.post("/v1/chat/completions", json={**CHAT, **bad}).status_code == 400


def test_an_answer_that_does_not_begin_in_time_is_given_up() -> None:
    engine = FakeEngine(hold=asyncio.Event())
    with TestClient(create_app(engine, api_key=None), base_url="http://127.0.0.1") as client:
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/chat/completions", {**CHAT, "stream": True}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/responses", {"input": "a"}),
        ):
            late = client.post(path, json={**body, "queue_timeout": 0.02})
            assert (late.status_code, late.json()["error"]["code"]) == (429, "queue_timeout"), path
            assert engine.calls[-1].ended == "cancelled"
        assert engine.hold is not None
        engine.hold.set()
        assert client.post("/v1/chat/completions", json={**CHAT, "queue_timeout": 9}).is_success
        assert engine.active == 0

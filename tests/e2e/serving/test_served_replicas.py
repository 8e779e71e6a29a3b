"""`ferrule serve --replicas`: requests are shared out, and a copy that dies takes no answer with it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from server_process import Server, start_server, wait_until

from ferrule.engine.replicas.router import BLOCK

pytestmark = pytest.mark.slow

PROMPTS = ("def main(", "class Point")
TOKENS = 200
STRUCK = 20
"""Tokens after which a copy is killed; ranks may be a hundred ahead of a client that gets no core."""
KINDS: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 1.0, "seed": 7})


async def answers(server: Server, disturb: Callable[[], None] | None = None) -> list[str]:
    """Of all prompts and kinds at once. ``disturb``: done when the first of them has some tokens."""
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=90)

    async def ask(prompt: str, kind: dict[str, Any], disturb: Callable[[], None] | None) -> str:
        stream = await client.completions.create(
            model="ferrule-demo", prompt=prompt, max_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}, **kind
        )
        pieces: list[str] = []
        async for chunk in stream:
            pieces.append(chunk.choices[0].text)
            if len(pieces) == STRUCK and disturb is not None:
                disturb()
        return "".join(pieces)

    asked = [(prompt, kind) for prompt in PROMPTS for kind in KINDS]
    return await asyncio.gather(
        *(ask(prompt, kind, None if number else disturb) for number, (prompt, kind) in enumerate(asked))
    )


def test_a_replica_that_is_killed_in_the_middle_of_answers_takes_none_with_it() -> None:
    server = start_server("--demo", "--tp", "1", "--replicas", "2", "--dtype", "float32")
    try:
        assert "by 2 replicas" in server.output
        ranks = server.ranks()
        assert len(ranks) == 2
        body = {"model": "ferrule-demo", "prompt": "x = 1\n" * 60, "max_tokens": 1}
        for known in (False, True):  # the second would go to the other copy, if this one did not know the prompt
            usage = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["usage"]
            assert (usage["prompt_tokens_details"]["cached_tokens"] >= BLOCK) == known
        whole = asyncio.run(answers(server))
        running: list[list[int]] = []

        def strike() -> None:
            running.append([each["running"] for each in server.health().json()["replicas"]])
            ranks[0].send_signal(signal.SIGKILL)

        assert asyncio.run(answers(server, strike)) == whole
        assert all(running[0]), "both copies had some"
        health = server.health()
        assert health.status_code == 200, "one copy was there all the time"

        def back() -> bool:
            return [each["state"] for each in server.health().json()["replicas"]] == ["ready", "ready"]

        wait_until(back, 90, "the killed copy is back")
        health = server.health()
        assert health.json()["recoveries"] == 1
        assert "was killed by SIGKILL" in health.json()["last_recovery"]["cause"]
        assert health.json()["last_recovery"]["requests"] == 0, "they went on elsewhere"
        (card,) = httpx.get(f"{server.url}/v1/models", timeout=10).json()["data"]
        assert [each["state"] for each in card["replicas"]] == ["ready", "ready"]
    finally:
        server.stop()

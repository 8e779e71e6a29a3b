"""Signs of life in a stream whose next piece takes long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from unittest.mock import patch

import httpx
from fake_engine import FakeEngine
from running import running

from ferrule.serve.answer import service
from ferrule.serve.answer.sending import with_silence

ASKED = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 2}


def test_a_long_silence_has_pings_and_the_answer_follows() -> None:
    with (
        patch.object(service, "PING_SECONDS", 0.05),
        running(FakeEngine(delay=0.3)) as url,
        httpx.stream("POST", f"{url}/v1/chat/completions", json=ASKED, timeout=10) as response,
    ):
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    begun = next(at for at, line in enumerate(lines) if line.startswith("data:"))
    assert lines[:begun] == [": ping"] * begun
    assert begun >= 2
    assert ": ping" in lines[begun:]
    assert lines[-1] == "data: [DONE]"


def test_an_error_after_a_ping_ends_the_stream_with_an_event() -> None:
    with (
        patch.object(service, "PING_SECONDS", 0.05),
        running(FakeEngine(delay=0.3, fail_after=0)) as url,
        httpx.stream("POST", f"{url}/v1/chat/completions", json=ASKED, timeout=10) as response,
    ):
        lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
    assert [line.startswith('data: {"error":') for line in lines] == [True]


def test_what_is_not_taken_is_cancelled() -> None:
    ended = []

    async def slow() -> AsyncGenerator[int]:
        try:
            yield 1
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def main() -> list[int | None]:
        seen: list[int | None] = []
        heard = with_silence(slow(), 0.01)
        async for item in heard:
            seen.append(item)
            if len(seen) == 3:
                break
        await heard.aclose()
        return seen

    assert asyncio.run(main()) == [1, None, None]
    assert ended == [True]

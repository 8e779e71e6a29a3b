"""Prompts that cannot fit are refused before they cost memory and time; whatever may fit is not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from unittest.mock import patch

import httpx
import openai
import pytest
from fake_engine import FakeEngine, byte_level
from hypothesis import given
from hypothesis import strategies as st
from running import running

from ferrule.errors import RequestError
from ferrule.serve.answer import prompt
from ferrule.serve.answer.prompt import MAX_BODY_BYTES, TokenizerPool, body_limit, encode
from ferrule.serve.http import auth
from ferrule.serve.http.errors import ApiError

BYTES = byte_level()


class CountingEngine(FakeEngine):
    """Counts the characters that are tokenized, in all and at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tokenized = self.longest = 0
        quick = self.tokenizer.encode

        def counted(text: str, *, add_special_tokens: bool = True) -> list[int]:
            self.tokenized += len(text)
            self.longest = max(self.longest, len(text))
            return quick(text, add_special_tokens=add_special_tokens)

        self.tokenizer.encode = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("endpoint", ["completions", "chat/completions"])
def test_a_prompt_far_too_long_is_refused_without_tokenizing_all_of_it(endpoint: str) -> None:
    engine = CountingEngine()
    text = "Grüße aus Köln. " * 50_000
    body = {"prompt": text} if endpoint == "completions" else {"messages": [{"role": "user", "content": text}]}
    with running(engine) as url:
        engine.tokenized = 0
        answer = httpx.post(f"{url}/v1/{endpoint}", json=body, timeout=30)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "512 tokens" in error["message"]
    assert engine.tokenized < len(text) / 10


@pytest.mark.parametrize("context", [16_384, 1 << 20])
def test_what_a_long_context_cannot_hold_is_never_tokenized_as_a_whole(context: int) -> None:
    """A tokenizer keeps 180 bytes for each character of what it is given at once."""
    engine = CountingEngine(max_context=context)
    text = "Grüße aus Köln. " * (context // 4)
    with pytest.raises(RequestError) as caught:
        encode(engine, text, field="prompt")
    assert caught.value.code == "context_length_exceeded"
    assert engine.longest <= prompt.SEGMENT_CHARACTERS < len(text)


@given(
    st.lists(st.sampled_from(["quick ", " ", "the lazy dog. ", "é", "你", "🙂", "\n"]), min_size=1, max_size=400),
    st.integers(1, 400),
)
def test_what_fits_is_tokenized_as_it_is(words: list[str], context: int) -> None:
    engine = FakeEngine(tokenizer=BYTES, max_context=context)
    text = "".join(words)
    tokens = BYTES.encode(text)
    with patch.object(prompt, "SEGMENT_CHARACTERS", 64):
        if len(tokens) <= context:
            assert encode(engine, text, field="prompt") == tuple(tokens)
            return
        try:
            assert encode(engine, text, field="prompt") == tuple(tokens)
        except RequestError as error:
            assert error.code == "context_length_exceeded"  # noqa: PT017 - either is right


def test_long_tokens_do_not_make_a_prompt_too_long() -> None:
    engine = FakeEngine(tokenizer=BYTES, max_context=1024)
    long = max(BYTES.backend.get_vocab(), key=len)
    assert prompt.is_too_long(engine, "a" * 9000)
    assert not prompt.is_too_long(engine, BYTES.decode([BYTES.backend.token_to_id(long)]) * 700)


def test_too_many_token_ids_are_refused_before_they_are_looked_at(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="513 tokens") as caught:
        client.completions.create(model="fake-1b", prompt=[-1] * 513)
    assert caught.value.code == "context_length_exceeded"


def test_the_body_limit_grows_with_the_context() -> None:
    assert body_limit(512) < 2**20 + 2**15 < body_limit(32_768) < body_limit(10**6) == MAX_BODY_BYTES


def test_a_body_beyond_the_models_limit_is_refused_by_its_length(shared_url: str) -> None:
    body = json.dumps({"prompt": "x" * (body_limit(512) + 1)}).encode()
    answer = httpx.post(
        f"{shared_url}/v1/completions", content=body, headers={"Content-Type": "application/json"}, timeout=10
    )
    assert answer.status_code == 413
    assert "1.0 MiB" in answer.json()["error"]["message"]


def test_bodies_of_all_requests_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_HELD_BYTES", 1000)
    with running(FakeEngine()) as url:
        for _ in range(3):
            refused = httpx.post(f"{url}/v1/completions", json={"prompt": "x" * 2000}, timeout=10)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert httpx.post(f"{url}/v1/completions", json={"prompt": "x" * 400}, timeout=10).status_code == 200


def test_requests_that_wait_to_be_tokenized_are_bounded() -> None:
    async def body() -> None:
        pool, go = TokenizerPool(), threading.Event()
        waits: Callable[[], bool] = lambda: go.wait(10)  # noqa: E731
        waiting = [asyncio.create_task(pool.run(waits)) for _ in range(prompt.MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await pool.run(waits)
        assert caught.value.status == 429
        go.set()
        assert all(await asyncio.gather(*waiting))
        assert await pool.run(lambda: 5) == 5, "a place that is free again is used"
        pool.close()

    asyncio.run(body())


def test_a_failed_request_gives_its_place_back() -> None:
    async def body() -> None:
        pool = TokenizerPool()
        for _ in range(2 * prompt.MOST_WAITING):
            with pytest.raises(ZeroDivisionError):
                await pool.run(lambda: 1 // 0)
        pool.close()

    asyncio.run(body())

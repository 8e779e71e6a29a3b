"""The rest of OpenAI's surface: cards of models, tokens, and fields that clients send and that change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from running import running
from test_serve_tools import MODEL, Serving, calling

from ferrule.model import Embedding

HELLO: Any = [{"role": "user", "content": "hi"}]
NOTHING_CHANGES: dict[str, Any] = {
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "user": "me",
    "safety_identifier": "me",
    "prompt_cache_key": "key",
    "prompt_cache_retention": "24h",
    "verbosity": "low",
    "prediction": {"type": "content", "content": "hello"},
    "parallel_tool_calls": True,
    "reasoning_effort": "low",
    "moderation": None,
    "logit_bias": {},
    "stop": None,
    "n": None,
    "audio": None,
    "modalities": ["text"],
    "functions": None,
    "tools": None,
    "tool_choice": None,
    "stream_options": {"include_usage": True, "include_obfuscation": False},
}


def test_fields_that_change_nothing_are_taken(shared_url: str, engine: FakeEngine) -> None:
    for path, own in (("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "hi"})):
        plain = httpx.post(f"{shared_url}/v1/{path}", json=own | {"max_tokens": 2}).json()
        answer = httpx.post(f"{shared_url}/v1/{path}", json=NOTHING_CHANGES | own | {"max_tokens": 2})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == plain["choices"]
        assert engine.calls[-1].params == engine.calls[-2].params
    refused = httpx.post(f"{shared_url}/v1/completions", json={"prompt": "hi", "best_of": 3})
    assert refused.json()["error"]["param"] == "best_of"


def test_a_refusal_in_the_history_is_what_was_said(client: openai.OpenAI, engine: FakeEngine) -> None:
    said: Any = [*HELLO, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *HELLO]
    client.chat.completions.create(model=MODEL, messages=said, max_tokens=1)
    shown = engine.tokenizer.decode(engine.calls[-1].prompt, skip_special_tokens=False)
    assert "<|assistant|>No.<|end|>" in shown


def test_cards_tell_the_context_and_what_a_model_can_do(serving: Serving, client: openai.OpenAI) -> None:
    plain: Any = client.models.retrieve(MODEL)
    assert (plain.max_model_len, plain.context_length, plain.context_window) == (512, 512, 512)
    assert plain.capabilities == ["completion", "chat", "structured_output", "embeddings"]
    assert (plain.owned_by, plain.object) == ("ferrule", "model")
    able: Any = serving(calling()).models.list().data[0]
    assert able.capabilities == ["completion", "chat", "tools", "reasoning", "structured_output", "embeddings"]
    without: Any = serving(calling(), tool_parser="none").models.retrieve(MODEL)
    assert "tools" not in without.capabilities
    encoder = serving(replace(calling(), embedding=Embedding(only=True)))
    told: Any = encoder.models.retrieve(MODEL)
    assert told.capabilities == ["embeddings"]
    for ask in (
        lambda: encoder.chat.completions.create(model=MODEL, messages=HELLO),
        lambda: encoder.completions.create(model=MODEL, prompt="a", stream=True),
        lambda: encoder.responses.create(model=MODEL, input="a"),
    ):
        with pytest.raises(openai.BadRequestError, match="makes vectors") as refused:
            ask()
        assert refused.value.code == "unsupported"


def post(url: str, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{url}/{path}", json=body, timeout=10)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_texts_and_chats_are_tokenized_and_back(shared_url: str, engine: FakeEngine) -> None:
    text = "Grüße <|end|>"
    made = post(shared_url, "tokenize", model=MODEL, prompt=text, return_token_strs=True)
    assert made["tokens"] == engine.tokenizer.encode(text)
    assert (made["count"], made["max_model_len"]) == (len(made["tokens"]), 512)
    assert len(made["token_strs"]) == made["count"]
    assert made["token_strs"][0] == "Gr"[: len(made["token_strs"][0])]
    assert made["token_strs"][-1] == "<|end|>"
    assert post(shared_url, "detokenize", tokens=made["tokens"]) == {"prompt": text}
    assert post(shared_url, "tokenize", prompt="")["tokens"] == []

    chat = post(shared_url, "tokenize", messages=HELLO)
    assert chat["token_strs"] is None
    assert post(shared_url, "detokenize", tokens=chat["tokens"])["prompt"] == "<|user|>hi<|end|><|assistant|>"
    shut = post(shared_url, "tokenize", messages=HELLO, add_generation_prompt=False)
    assert shut["tokens"] == chat["tokens"][:-1]


@pytest.mark.parametrize(
    ("path", "body", "param", "why"),
    [
        ("tokenize", {}, "prompt", "either"),
        ("tokenize", {"prompt": "a", "messages": HELLO}, "prompt", "either"),
        ("tokenize", {"messages": HELLO, "continue_final_message": True}, "continue_final_message", "complete"),
        ("tokenize", {"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template", "own template"),
        ("tokenize", {"prompt": "word " * 40_000}, "prompt", "context of 512"),
        ("detokenize", {"tokens": [1, 300]}, "tokens", "300 is not a token"),
        ("detokenize", {"tokens": [-1]}, "tokens", "-1 is not a token"),
        ("detokenize", {}, "tokens", "required"),
    ],
)
def test_what_has_no_tokens_is_refused(shared_url: str, path: str, body: Any, param: str, why: str) -> None:
    refused = httpx.post(f"{shared_url}/{path}", json=body, timeout=10)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == param
    assert why in error["message"]


def test_another_model_than_the_one_served_has_no_tokens() -> None:
    with running(FakeEngine()) as url:
        assert httpx.post(f"{url}/tokenize", json={"model": "other", "prompt": "a"}).status_code == 404


def test_a_web_page_of_an_allowed_origin_may_delete_what_it_had_kept() -> None:
    page = "https://chat.example"
    with running(FakeEngine(), api_key="secret", origins=(page,)) as url:
        asked = {"Origin": page, "Access-Control-Request-Method": "DELETE"}
        assert httpx.options(f"{url}/v1/responses/resp_1", headers=asked).status_code == 200

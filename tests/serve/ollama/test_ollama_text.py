"""Ollama's chat and generate, with the real client and a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import httpx
import ollama
import pytest
from fake_engine import TEXT, FakeEngine, byte_level
from running import running, until

from ferrule.engine import SamplingParams
from ferrule.serve.answer import service
from ferrule.serve.ollama.chat import sampling_fields
from ferrule.serve.ollama.schemas import Options

MODEL = "fake-1b:latest"
HELLO = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]<tool_call>{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ m.reasoning_content or '' }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}|{{ c.function.arguments.items() | list }}){% endfor %}"
    "{% if m.name %}={{ m.name }}{% endif %}<|end|>{% endfor %}"
    "{{ reasoning_effort or '' }}<|assistant|>{% if enable_thinking %}<think>{% endif %}{# </think> #}"
)
THOUGHT = "<think>Grüße?</think>\n\nI look.\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln \\"Süd\\"\\n", "days": 2}}\n</tool_call>'
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}


@pytest.fixture
def talk(engine: FakeEngine, shared_url: str) -> Iterator[ollama.Client]:
    with ollama.Client(shared_url, timeout=10) as client:
        yield client


@pytest.fixture(scope="module")
def thinker() -> Iterator[tuple[FakeEngine, ollama.Client]]:
    """A model that thinks and calls."""
    tokenizer = byte_level(TEMPLATE, ("<tool_call>", "</tool_call>"))
    engine = FakeEngine(THOUGHT + CALL, tokenizer=tokenizer, max_context=2048)
    with running(engine) as url, ollama.Client(url, timeout=10) as client:
        yield engine, client


def prompt_of(engine: FakeEngine) -> str:
    return engine.tokenizer.decode(engine.calls[-1].prompt, skip_special_tokens=False)


def check_metrics(last: Any, prompt: int, answer: int) -> None:
    assert (last.done, last.done_reason) == (True, "stop")
    assert (last.prompt_eval_count, last.eval_count) == (prompt, answer)
    assert 0 <= last.load_duration < last.total_duration
    assert last.prompt_eval_duration > 0
    assert last.eval_duration > 0
    assert last.load_duration + last.prompt_eval_duration + last.eval_duration <= last.total_duration
    assert last.created_at.endswith("Z")


def test_a_chat_is_streamed_and_whole(talk: ollama.Client, engine: FakeEngine) -> None:
    parts = list(talk.chat(MODEL, HELLO, stream=True))
    assert "".join(part.message.content or "" for part in parts) == TEXT
    assert {part.done for part in parts[:-1]} == {False}
    assert len(parts) > 5
    assert {part.model for part in parts} == {MODEL}
    call = engine.calls[-1]
    assert prompt_of(engine) == "<|user|>hi<|end|><|assistant|>"
    check_metrics(parts[-1], len(call.prompt), call.made)
    whole = talk.chat("acme/FAKE-1b", HELLO)
    assert whole.message.content == TEXT
    assert whole.message.role == "assistant"
    check_metrics(whole, len(call.prompt), call.made)


def test_generate_goes_on_from_its_context(talk: ollama.Client, engine: FakeEngine) -> None:
    parts = list(talk.generate(MODEL, "hi", system="Be brief.", stream=True, options={"num_predict": 3}))
    assert prompt_of(engine) == "<|system|>Be brief.<|end|><|user|>hi<|end|><|assistant|>"
    assert parts[-1].done_reason == "length"
    first = parts[-1].context
    assert first is not None
    assert (*first[:-3],) == engine.calls[-1].prompt
    again = talk.generate(MODEL, "more", context=first)
    assert again.response == TEXT
    assert engine.calls[-1].prompt[: len(first)] == tuple(first)
    assert prompt_of(engine).endswith("<|user|>more<|end|><|assistant|>")
    with pytest.raises(ollama.ResponseError, match="context: 99999 is not a token"):
        talk.generate(MODEL, "more", context=[99999])
    with pytest.raises(ollama.ResponseError, match="more than this model's context"):
        talk.generate(MODEL, "more", context=[5] * 600)


def test_a_raw_prompt_is_continued(talk: ollama.Client, engine: FakeEngine) -> None:
    answer = talk.generate(MODEL, "The quick", raw=True, logprobs=True, top_logprobs=2, options={"num_predict": 2})
    assert prompt_of(engine) == "The quick"
    assert answer.context is None
    assert answer.response
    assert answer.logprobs is not None
    assert "".join(each.token for each in answer.logprobs) == answer.response
    assert [len(each.top_logprobs or ()) for each in answer.logprobs] == [2, 2]
    with pytest.raises(ollama.ResponseError, match="leave out system"):
        talk.generate(MODEL, "The quick", raw=True, system="Be brief.")
    with running(FakeEngine(tokenizer=byte_level(None))) as url, ollama.Client(url, timeout=10) as plain:
        assert plain.generate(MODEL, "The quick").response == TEXT
        with pytest.raises(ollama.ResponseError, match="no chat template"):
            plain.chat(MODEL, HELLO)


def test_reasoning_and_calls(thinker: tuple[FakeEngine, ollama.Client]) -> None:
    engine, client = thinker
    engine.text = THOUGHT.removeprefix("<think>") + CALL  # the prompt has opened it
    whole = client.chat("fake-1b", HELLO, tools=[WEATHER], think=True)
    assert "<think>" in prompt_of(engine)
    assert (whole.message.thinking, (whole.message.content or "").strip()) == ("Grüße?", "I look.")
    assert whole.message.tool_calls
    called = whole.message.tool_calls[0].function
    assert (called.name, called.arguments) == ("weather", {"city": 'Köln "Süd"\n', "days": 2})
    assert whole.done_reason == "stop"
    parts = list(client.chat("fake-1b", HELLO, tools=[WEATHER], think="high", stream=True))
    assert "high<|assistant|><think>" in prompt_of(engine)
    assert "".join(part.message.thinking or "" for part in parts) == "Grüße?"
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [call.function.arguments for call in calls] == [called.arguments]
    history: Any = [*HELLO, whole.message, {"role": "tool", "tool_name": "weather", "content": "22 °C"}]
    engine.text = THOUGHT
    answer = client.chat("fake-1b", history, think=False)
    assert "(weather|[('city'" in prompt_of(engine)
    assert "<|tool|>22 °C=weather" in prompt_of(engine)
    assert "none<|assistant|>" in prompt_of(engine)
    assert answer.message.thinking is None
    parts = list(client.chat("fake-1b", HELLO, think=False, stream=True))
    assert not any(part.message.thinking for part in parts)
    assert "".join(part.message.content or "" for part in parts).strip() == "I look."
    made = client.generate("fake-1b", "hi")
    assert made.thinking == "Grüße?"
    assert "I look." in (made.response or "")
    assert "think" not in (made.response or "")


def test_models_that_neither_think_nor_call_say_so(talk: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="does not support thinking") as thinking:
        talk.chat(MODEL, HELLO, think=True)
    assert thinking.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="does not support tools"):
        talk.chat(MODEL, HELLO, tools=[WEATHER])
    assert talk.chat(MODEL, HELLO, think=False).message.content == TEXT


def test_a_format_is_a_constraint(talk: ollama.Client, engine: FakeEngine) -> None:
    talk.chat(MODEL, HELLO, format="json")
    constraint = engine.calls[-1].params.constraint
    assert constraint is not None
    assert json.loads(constraint.text) == {"type": "object"}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for made in (lambda: talk.generate(MODEL, "hi", format=schema), lambda: talk.chat(MODEL, HELLO, format=schema)):
        made()
        constraint = engine.calls[-1].params.constraint
        assert constraint is not None
        assert json.loads(constraint.text) == schema
    with pytest.raises(ollama.ResponseError, match="format"):
        talk.chat(MODEL, HELLO, format={"type": "nothing"})


def test_options_reach_the_engine(talk: ollama.Client, engine: FakeEngine) -> None:
    options = {
        "temperature": 2.5, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "seed": 3, "num_predict": 4.0,
        "repeat_penalty": 1.2, "presence_penalty": 3.0, "frequency_penalty": 0.5, "num_ctx": 131072, "num_gpu": 1,
        "mirostat": 0, "stop": None,
    }  # fmt: skip
    talk.chat(MODEL, HELLO, options=options)
    assert engine.calls[-1].params == SamplingParams(
        4, 2.5, 0.5, 7, 0.1, 3, presence_penalty=3.0, frequency_penalty=0.5, repetition_penalty=1.2
    )
    answer = talk.chat(MODEL, HELLO, options={"stop": [" fox"], "num_predict": -2, "seed": -1})
    assert (answer.message.content, answer.done_reason) == ("The quick brown", "stop")
    assert (engine.calls[-1].params.max_tokens, engine.calls[-1].params.seed) == (None, None)
    for num_predict in (-1, 0):
        assert sampling_fields(Options(num_predict=num_predict))["max_tokens"] is None
    assert sampling_fields(Options(repeat_penalty=0.0))["repetition_penalty"] == 1.0
    assert sampling_fields(Options(repeat_last_n=0, repeat_penalty=1.3))["repetition_penalty"] == 1.0
    with pytest.raises(ollama.ResponseError, match=r"options\.temperature"):
        talk.chat(MODEL, HELLO, options={"temperature": -1})


def test_without_a_prompt_a_model_is_loaded_or_unloaded(talk: ollama.Client, engine: FakeEngine) -> None:
    loaded = talk.generate(MODEL, keep_alive="5m")
    assert (loaded.done, loaded.done_reason, loaded.response) == (True, "load", "")
    assert talk.generate(MODEL, keep_alive=0).done_reason == "unload"
    assert list(talk.chat(MODEL, [], stream=True))[-1].done_reason == "load"
    assert talk.chat(MODEL, keep_alive="0s").done_reason == "unload"
    assert engine.calls == []
    with pytest.raises(ollama.ResponseError, match="keep_alive"):
        talk.generate(MODEL, keep_alive="soon")


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("generate", {"prompt": "hi", "template": "{{ .Prompt }}"}, 400, "template: not supported"),
        ("generate", {"prompt": "def f(", "suffix": "return x"}, 400, "suffix: not supported"),
        ("generate", {"prompt": "hi", "images": ["aGk="]}, 400, "images.0: not supported: this model takes text only"),
        ("generate", {"prompt": "hi", "top_logprobs": 2}, 400, "top_logprobs"),
        ("generate", {"prompt": "hi", "model": ""}, 400, "model"),
        ("generate", {"prompt": "hi", "format": "xml"}, 400, "format: must be 'json' or a JSON schema"),
        (
            "chat",
            {"messages": [{"role": "user", "content": "?", "images": ["aGk="]}]},
            400,
            "messages.0.images.0: not supported",
        ),
        ("chat", {"messages": [{"role": "judge", "content": "?"}]}, 400, "messages.0.role"),
        ("chat", {"messages": HELLO, "think": 3}, 400, "think"),
        ("chat", {"messages": HELLO, "model": "llama3.2"}, 404, "'llama3.2' is not served here"),
    ],
)
def test_refusals(shared_url: str, path: str, body: dict[str, Any], status: int, reason: str) -> None:
    answer = httpx.post(f"{shared_url}/api/{path}", json={"model": MODEL, **body}, timeout=10)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert reason in answer.json()["error"]


def test_a_silence_has_lines_and_a_failure_is_the_last_one() -> None:
    engine = FakeEngine(delay=0.3, fail_after=2)
    with (
        patch.object(service, "PING_SECONDS", 0.05),
        running(engine) as url,
        ollama.Client(url, timeout=10) as client,
        httpx.stream("POST", f"{url}/api/chat", json={"model": MODEL, "messages": HELLO}, timeout=10) as response,
    ):
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in response.iter_lines()]
        assert [line["message"]["content"] for line in lines[:2]] == ["", ""]
        assert not any(line["done"] for line in lines[:-1])
        assert list(lines[-1]) == ["error"]
        assert "was lost" in lines[-1]["error"]
        with pytest.raises(ollama.ResponseError, match="the model has failed") as failed:
            client.generate(MODEL)
        assert failed.value.status_code == 503


def test_a_client_that_leaves_ends_its_sequence(shared_url: str, engine: FakeEngine) -> None:
    engine.delay = 0.02
    try:
        with httpx.stream("POST", f"{shared_url}/api/generate", json={"model": MODEL, "prompt": "hi"}) as response:
            next(response.iter_lines())
        until(lambda: engine.calls[-1].ended is not None)
        assert engine.calls[-1].ended == "cancelled"
    finally:
        engine.delay = 0.0

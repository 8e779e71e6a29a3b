"""Images in requests of each API, with the real clients and a scripted engine that sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from fake_engine import TEXT, demo_spec, tensor_plan
from running import running, until
from seeing import MODEL, PARTS, STRINGS, TOKENS, USERS, SeeingEngine, base64_of, data_url, image_file, seeing_tokenizer

from ferrule.engine import SamplingParams
from ferrule.serve.answer.prepared import SMALL_BODY
from ferrule.serve.app import create_app
from ferrule.serve.images import take
from ferrule.serve.models.many import ManyModels
from ferrule.serve.models.memory import Memory
from ferrule.serve.models.offer import Need, Offer, Unloaded

RED, BLUE = image_file(), image_file("JPEG", colour="blue")
RED_URL, BLUE_URL = data_url(RED), data_url(BLUE, "image/jpeg")
WEATHER: Any = {"name": "look", "description": "Looks", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[SeeingEngine, str]]:
    engine = SeeingEngine(adapters=("poet",))
    with running(engine) as url:
        yield engine, url


@pytest.fixture
def engine(server: tuple[SeeingEngine, str]) -> SeeingEngine:
    server[0].calls.clear()
    server[0].seen.clear()
    return server[0]


@pytest.fixture
def client(engine: SeeingEngine, server: tuple[SeeingEngine, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server[1]}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client


def shown(*urls: str) -> Any:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}


def test_chats(client: openai.OpenAI, engine: SeeingEngine) -> None:
    """In their places between texts; several answers share them, and so does one by an adapter."""
    content: Any = [
        {"type": "text", "text": "One"},
        {"type": "image_url", "image_url": {"url": RED_URL, "detail": "high"}},
        {"type": "text", "text": "and"},
        {"type": "text", "text": "two"},
        {"type": "image_url", "image_url": BLUE_URL},
        {"type": "image_url", "image_url": {"url": RED_URL}},
    ]
    messages: Any = [{"role": "system", "content": "See."}, {"role": "user", "content": content}]
    answer = client.chat.completions.create(model=f"{MODEL}:poet", messages=messages, n=2, logprobs=True, seed=3)
    assert engine.seen == [[RED, BLUE, RED]]
    assert engine.prompt() == "<|system|>See.<|end|><|user|>One[]and\ntwo[][]<|end|><|assistant|>"
    assert [call.params.adapter for call in engine.calls] == ["poet"] * 2
    assert engine.calls[0].images == engine.calls[1].images
    assert [choice.message.content for choice in answer.choices] == [TEXT] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(engine.calls[0].prompt)
    engine.calls.clear()
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}, stop=["lazy"]
    )
    events = list(stream)
    said = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert said == TEXT.partition("lazy")[0]
    assert events[-1].usage is not None
    assert events[-1].usage.prompt_tokens == len(engine.calls[0].prompt)
    schema: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    client.chat.completions.create(model=MODEL, messages=[shown(RED_URL)], response_format=schema)
    assert engine.calls[-1].params.constraint is not None
    assert len(engine.calls[-1].images) == 1
    tokens = httpx.post(f"{client.base_url}".replace("/v1/", "/tokenize"), json={"messages": messages}).json()
    assert tokens["tokens"] == list(engine.calls[0].prompt)


def test_models_say_that_they_see(client: openai.OpenAI, server: tuple[SeeingEngine, str]) -> None:
    assert "vision" in client.models.retrieve(MODEL).model_extra["capabilities"]  # type: ignore[index]
    with ollama.Client(server[1]) as talk:
        assert "vision" in (talk.show(MODEL).capabilities or ())


def test_anthropic(engine: SeeingEngine, server: tuple[SeeingEngine, str]) -> None:
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(RED)}}
    call: Any = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result: Any = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Seen:"}, image]}
    failed: Any = {**result, "is_error": True, "content": [image]}
    fields: Any = {
        "model": MODEL,
        "tools": [WEATHER],
        "messages": [
            {"role": "user", "content": [image, {"type": "text", "text": "What?"}]},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, failed, {"type": "text", "text": "So?"}]},
        ],
    }
    with anthropic.Anthropic(base_url=server[1], api_key="none", max_retries=0, timeout=10) as client:
        answer = client.messages.create(**fields, max_tokens=99)
        assert engine.prompt() == (
            "[look]<tool_call><|user|>[]What?\nAnd?<|end|><|assistant|><|end|><|tool|>Seen:[]<|end|>"
            "<|tool|>Error: []<|end|><|user|>So?<|end|><|assistant|>"
        )
        assert answer.usage.input_tokens == len(engine.calls[-1].prompt)
        assert client.messages.count_tokens(**fields).input_tokens == answer.usage.input_tokens
        for source, told in (
            ({"type": "file", "file_id": "f"}, "messages.0.content.0: not supported: images of type 'file'"),
            ({"type": "url", "url": "ftp://a/b"}, "messages.0.content.0.source.url: the URL of an image must begin"),
            ({"type": "url", "url": "https://a/b"}, "messages.0.content.0: images are not fetched here"),
            ({**image["source"], "media_type": "image/gif"}, "messages.0.content.0: .* its data is image/png"),
        ):
            fields["messages"] = [{"role": "user", "content": [{"type": "image", "source": source}]}]
            with pytest.raises(anthropic.BadRequestError, match=told):
                client.messages.create(**fields, max_tokens=99)
        fields["messages"] = [{"role": "assistant", "content": [image]}, {"role": "user", "content": "?"}]
        with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0: only messages of the user"):
            client.messages.create(**fields, max_tokens=99)
        with pytest.raises(anthropic.BadRequestError, match=r"system\.0: .* 'image' are not taken in this place"):
            client.messages.create(**{**fields, "system": [image]}, max_tokens=99)


def test_ollama(engine: SeeingEngine, server: tuple[SeeingEngine, str]) -> None:
    with ollama.Client(server[1], timeout=10) as client:
        answer = client.chat(MODEL, [{"role": "user", "content": "What?", "images": [RED, BLUE]}])
        assert answer.message.content == TEXT
        assert engine.seen == [[RED, BLUE]]
        assert engine.prompt() == "<|user|>[][]What?<|end|><|assistant|>"
        assert answer.prompt_eval_count == len(engine.calls[-1].prompt)
        made = client.generate(MODEL, "What?", images=[RED], system="See.")
        assert made.response == TEXT
        assert made.context is None  # tokens alone would not show them again
        assert engine.prompt() == "<|system|>See.<|end|><|user|>[]What?<|end|><|assistant|>"
        for fields, told in (
            ({"raw": True}, "images: not supported: raw is the whole prompt"),
            ({"context": [5]}, "context: not supported: .* use /api/chat"),
            ({"images": ["?"]}, r"images\.0: .* no valid base64"),
        ):
            with pytest.raises(ollama.ResponseError, match=told):
                client.generate(MODEL, "What?", **{"images": [RED], **fields})  # type: ignore[arg-type]


def test_responses(client: openai.OpenAI, engine: SeeingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept for those that follow; as the results of tools, too."""
    content: Any = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": RED_URL}]
    first = client.responses.create(model=MODEL, input=[{"role": "user", "content": content}])
    assert first.output_text == TEXT
    assert engine.prompt() == "<|user|>What?[]<|end|><|assistant|>"
    output: Any = [{"type": "input_image", "image_url": BLUE_URL}]
    second: Any = [
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    fields: Any = {"model": MODEL, "input": second, "previous_response_id": first.id, "truncation": "auto"}
    answer = client.responses.create(**fields)
    assert engine.seen[-1] == [RED, BLUE]
    assert engine.prompt().startswith("<|user|>What?[]<|end|><|assistant|>The quick")
    assert engine.prompt().endswith("<|tool|>[]<|end|><|assistant|>")
    assert answer.usage is not None
    assert answer.usage.input_tokens == len(engine.calls[-1].prompt)
    assert client.responses.input_tokens.count(**fields).input_tokens == answer.usage.input_tokens
    monkeypatch.setattr(take, "MOST_IMAGES", 3)
    many: Any = [{"type": "input_image", "image_url": data_url(RED, "image/*")}] * 3
    fields["input"] = [{"role": "user", "content": many}]
    client.responses.create(**fields)  # the oldest turn is left out
    assert engine.seen[-1] == [RED] * 3
    with pytest.raises(openai.BadRequestError, match="a request may have 3") as caught:
        client.responses.create(**{**fields, "truncation": "disabled"})
    assert caught.value.code == "too_many_images"
    kept = client.responses.input_items.list(first.id).data[0]
    assert kept.content[1].image_url == RED_URL  # type: ignore[union-attr]
    file: Any = [{"type": "input_image", "file_id": "f"}]
    with pytest.raises(openai.BadRequestError, match="file_id is not supported") as caught:
        client.responses.create(model=MODEL, input=[{"role": "user", "content": file}])
    assert caught.value.param == "input.0"
    bad: Any = [{"type": "input_image", "image_url": "https://a/b.png"}]
    with pytest.raises(openai.BadRequestError, match="--image-urls") as caught:
        client.responses.create(model=MODEL, input=[{"role": "user", "content": bad}], previous_response_id=first.id)
    assert caught.value.param == "input.0.content.0"


def test_nobody_reads_for_a_client_that_has_left_or_is_refused(
    serving: Callable[..., openai.OpenAI],
) -> None:
    engine = SeeingEngine(look=asyncio.Event())
    client = serving(engine, max_sequences=1)
    for at, size in enumerate((0, SMALL_BODY)):  # by the event loop, and beside it
        body = {"model": MODEL, "messages": [shown(data_url(RED + bytes(size)))]}
        connection = HTTPConnection("127.0.0.1", client.base_url.port or 0)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        until(lambda at=at: engine.begun == at + 1)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=MODEL, messages=[shown(RED_URL)])
        connection.close()
        until(lambda at=at: engine.left == at + 1)
    engine.look = None
    client.chat.completions.create(model=MODEL, messages=[shown(RED_URL)], max_tokens=2)
    assert len(engine.calls) == 1


def test_images_are_counted_by_a_model_that_is_loaded_for_it() -> None:
    async def count() -> None:
        engine = SeeingEngine()

        async def load() -> SeeingEngine:
            return engine

        tokenizer = engine.tokenizer
        offers = [
            Offer(
                Unloaded(name, 7, demo_spec(), tensor_plan(), tokenizer, SamplingParams(), 4096, **more), load, Need(1)
            )
            for name, more in (("first", {}), (MODEL, {"image_marker": engine.image_marker}))
        ]
        models = ManyModels(offers, Memory(1 << 30))
        app = create_app(models, api_key=None)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            for content, state in (("Hi", "unloaded"), (shown(RED_URL)["content"], "ready")):
                body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
                answer = await client.post("/tokenize", json=body)
                assert answer.status_code == 200, answer.text
                assert answer.json()["count"] >= TOKENS
                assert (await client.get(f"/v1/models/{MODEL}")).json()["state"] == state
        await models.aclose()

    asyncio.run(count())


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (PARTS, "<|user|>See[]<|end|><|assistant|><|end|><|tool|>A[]<|end|><|tool|>B<|end|><|user|>So?<|end|>"),
        (STRINGS, "<|user|>See\n[]<|end|><|assistant|><|end|><|tool|>A\n[]<|end|><|tool|>B<|end|><|user|>So?<|end|>"),
        (USERS, "<|user|>See[]<|end|><|assistant|><|end|><|tool|>A<|end|><|tool|>B<|end|><|user|>[]So?<|end|>"),
    ],
)
def test_templates_get_images_as_they_take_them(template: str, told: str) -> None:
    """As parts, or as the model's mark in a text; those of a tool's result in what the user says if need be."""
    engine = SeeingEngine(tokenizer=seeing_tokenizer(template))
    result = {
        "role": "tool",
        "tool_call_id": "1",
        "content": [{"type": "text", "text": "A"}, *shown(RED_URL)["content"]],
    }
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "See"}, *shown(BLUE_URL)["content"]]},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look"}}]},
        result,
        {"role": "tool", "tool_call_id": "1", "content": "B"},
        {"role": "user", "content": "So?"},
    ]
    with running(engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2)
        assert engine.prompt() == f"{told}<|assistant|>"
        assert engine.seen == [[BLUE, RED]]
        assert len(engine.calls[0].prompt) >= 2 * TOKENS
        begun: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}]
        more = {"continue_final_message": True}
        client.chat.completions.create(model=MODEL, messages=begun, max_tokens=2, extra_body=more)
        assert engine.prompt() == "<|user|>Hi<|end|><|assistant|>The"

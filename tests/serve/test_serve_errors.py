"""Everything that goes wrong, as the real client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from fake_engine import TEXT, FakeEngine, byte_level, tensor_plan
from running import running, until

from ferrule.engine import Health, ReplicaHealth
from ferrule.errors import ModelUnavailable
from ferrule.model import Share
from ferrule.plan import Plan, Stage
from ferrule.serve.answer.prompt import MAX_BODY_BYTES

MODEL = "acme/fake-1b"
HELLO: Any = [{"role": "user", "content": "Hello"}]
Serving = Callable[..., openai.OpenAI]


TOOL: Any = {"type": "function", "function": {"name": "f"}}


def calling(arguments: str) -> Any:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": "Once", **fields})


@pytest.mark.parametrize(
    ("ask", "fields", "param", "told"),
    [
        (chat, {"temperature": 3}, "temperature", "less than or equal to 2"),
        (chat, {"temperature": "hot"}, "temperature", "number"),
        (chat, {"top_p": -0.5}, "top_p", "greater than or equal to 0"),
        (chat, {"n": 0}, "n", "greater than or equal to 1"),
        (chat, {"max_tokens": -2}, "max_tokens", "greater"),
        (chat, {"max_completion_tokens": 1.5}, "max_completion_tokens", "integer"),
        (chat, {"presence_penalty": -2.5}, "presence_penalty", "greater"),
        (chat, {"stop": ["a"] * 65}, "stop", "at most 64"),
        (chat, {"stop": {}}, "stop", "at most 64"),
        (chat, {"stop": [""]}, "stop", "1 to 1024 characters"),
        (chat, {"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        (chat, {"logit_bias": {"1": 101}}, "logit_bias", "between -100 and 100"),
        (chat, {"logit_bias": {"999999": 1}}, "logit_bias", "not a token"),
        (chat, {"top_logprobs": 2}, "top_logprobs", "logprobs is true"),
        (chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        (chat, {"messages": []}, "messages", "at least 1"),
        (chat, {"messages": "hi"}, "messages", "list"),
        (chat, {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "one of system"),
        (chat, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "string"),
        (chat, {"messages": [calling("[1]")]}, "messages.0.tool_calls.0.function.arguments", "JSON object"),
        (chat, {"messages": [calling("{")]}, "messages.0.tool_calls.0.function.arguments", "not valid JSON"),
        (chat, {"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs", "'messages'"),
        (chat, {"extra_body": {"continue_final_message": True}}, "messages", "no text of the assistant's"),
        (chat, {"functions": [{"name": "f"}]}, "functions", "use tools"),
        (chat, {"messages": [{"role": "assistant", "content": "x"}]}, "messages", "roles must alternate"),
        (
            chat,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content",
            "part 0: the URL of an image must begin with data: or https://",
        ),
        (
            chat,
            {"messages": [{"role": "user", "content": ["?", {"type": "input_audio"}]}]},
            "messages.0.content",
            "each part must be an object",
        ),
        (
            chat,
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages.0.content",
            "'input_audio' are not supported",
        ),
        (chat, {"tools": [TOOL]}, "tools", "chat template knows no tools"),
        (chat, {"tools": [TOOL], "tool_choice": "required"}, "tools", "chat template knows no tools"),
        (chat, {"tool_choice": "required"}, "tool_choice", "none to call"),
        (chat, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "'x'"),
        (chat, {"tools": [TOOL], "tool_choice": {"type": "web"}}, "tool_choice", "must be none, auto, required or"),
        (chat, {"extra_body": {"thinking_budget": -2}}, "thinking_budget", "greater"),
        (chat, {"tools": [{"type": "web"}]}, "tools.0.type", "function"),
        (chat, {"modalities": ["text", "audio"]}, "modalities", "text only"),
        (complete, {"best_of": 2}, "best_of", "not supported"),
        (complete, {"suffix": "end"}, "suffix", "no special tokens for filling in"),
        (complete, {"suffix": "end", "echo": True, "logprobs": 1}, "echo", "not supported"),
        (complete, {"logprobs": True}, "logprobs", "integer"),
        (complete, {"prompt": []}, "prompt", "must be"),
        (complete, {"prompt": ""}, "prompt", "empty"),
        (complete, {"prompt": ["a", 1]}, "prompt", "must be"),
        (complete, {"prompt": [5, 999999]}, "prompt", "not a token"),
        (complete, {"prompt": None}, "prompt", "must be"),
        (complete, {"extra_body": {"top_k": "many"}}, "top_k", "integer"),
        (complete, {"extra_body": {"min_p": 2}}, "min_p", "less"),
    ],
)
def test_a_wrong_value_is_named(client: openai.OpenAI, ask: Any, fields: Any, param: str, told: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert told in caught.value.message
    assert "messages" in param or param in caught.value.message


def test_what_asks_for_nothing_special_is_accepted(client: openai.OpenAI) -> None:
    answer = chat(
        client,
        tools=[TOOL],
        tool_choice="none",
        response_format={"type": "text"},
        modalities=["text"],
        stop=None,
        stream_options=None,
        logit_bias=None,
        max_tokens=1,
    )
    assert answer.choices[0].message.content
    assert complete(client, best_of=1, suffix=None, stop=[]).choices[0].text


def test_unknown_model(client: openai.OpenAI) -> None:
    for ask in (chat, complete):
        with pytest.raises(openai.NotFoundError) as caught:
            ask(client, model="gpt-4o")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        assert "acme/fake-1b" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, prompt=[65] * 600, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert "600 tokens" in caught.value.message


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"model": ', "not valid JSON"),
        (b"", "JSON object"),
        (b"[1, 2]", "JSON object"),
        (b'"hi"', "JSON object"),
        (b"{}", "messages"),
        (b"\xff\xfe", "body"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "temperature"),
        (b"[" * 100_000, "body"),
    ],
)
def test_bad_json(shared_url: str, body: bytes, told: str) -> None:
    answer = httpx.post(
        f"{shared_url}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}, timeout=10
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert told in error["message"]


def test_refusals_before_the_body_is_read(shared_url: str) -> None:
    def refused(method: str, path: str, **options: Any) -> tuple[int, str]:
        answer = httpx.request(method, shared_url + path, timeout=10, **options)
        return answer.status_code, answer.json()["error"]["message"]

    assert refused("GET", "/v1/nothing")[0] == 404
    assert "/v1/nothing" in refused("GET", "/v1/nothing")[1]
    assert refused("GET", "/v1/completions")[0] == 405
    assert refused("OPTIONS", "/v1/completions")[0] == 405, "no CORS"
    for path, methods in (("/v1/responses/some", "DELETE, GET"), ("/v1/responses/input_tokens", "POST")):
        response = httpx.options(shared_url + path, timeout=10)
        assert (response.status_code, response.headers["allow"]) == (405, methods)
    assert refused("POST", "/v1/completions", content=b"{}", headers={"Content-Type": "text/plain"})[0] == 415
    assert refused("GET", "/v1/models", headers={"Host": "evil.example"})[0] == 403
    json_type = {"Content-Type": "application/json"}
    assert refused("POST", "/v1/completions", content=b" " * (MAX_BODY_BYTES + 1), headers=json_type)[0] == 413

    def chunks() -> Any:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    assert refused("POST", "/v1/completions", content=chunks(), headers=json_type)[0] == 413


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:9", "LOCALHOST:8420", "127.1.2.3"])
def test_loopback_names_are_answered(shared_url: str, host: str) -> None:
    assert httpx.get(f"{shared_url}/v1/models", headers={"Host": host}).status_code == 200


def test_keys(serving: Serving) -> None:
    client = serving(FakeEngine(), key="sësame")
    url = str(client.base_url)
    assert httpx.get(f"{url}models").status_code == 401
    for header in ("Bearer wrong", "Basic sesame", "Bearer", "sesame"):
        answer = httpx.get(f"{url}models", headers={"Authorization": header})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    right = {"Authorization": "Bearer sësame".encode()}
    assert httpx.get(f"{url}models", headers=right).status_code == 200
    assert httpx.get(f"{url}models", headers={**right, "Host": "box.example"}).status_code == 200
    assert httpx.get(url.replace("/v1/", "/health")).status_code == 200
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError),
    ):
        chat(other)


def test_a_model_without_chat_template(serving: Serving) -> None:
    client = serving(FakeEngine(tokenizer=byte_level(template=None)))
    with pytest.raises(openai.BadRequestError, match="/v1/completions") as caught:
        chat(client)
    assert caught.value.code == "no_chat_template"
    assert complete(client).choices[0].text


@pytest.mark.parametrize("n", [1, 2])
def test_a_rank_lost_mid_stream(serving: Serving, n: int) -> None:
    engine = FakeEngine(fail_after=5)
    client = serving(engine)
    texts: list[str] = []

    def read() -> None:
        for chunk in chat(client, stream=True, n=n):
            if chunk.choices[0].index == 0:
                texts.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError, match="rank 1") as caught:
        read()
    text = "".join(texts)
    assert text
    assert TEXT.startswith(text)
    assert caught.value.code == "engine_error"
    health = httpx.get(str(client.base_url).replace("/v1/", "/health"))
    assert health.status_code == 503
    assert health.json()["status"] == "failed"
    assert "rank 1" in health.json()["error"]
    with pytest.raises(openai.InternalServerError, match="rank 1") as later:
        chat(client)
    assert later.value.status_code == 503
    assert engine.active == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_rank_lost_before_the_first_token(serving: Serving, stream: bool) -> None:
    client = serving(FakeEngine(fail_after=0))
    with pytest.raises(openai.InternalServerError, match="rank 1") as caught:
        chat(client, stream=stream)
    assert caught.value.status_code == 503


def test_a_model_that_cannot_be_had_now_says_why_and_when_to_come_back(serving: Serving) -> None:
    client = serving(FakeEngine(away=ModelUnavailable("host two is away", retry_after=7)))
    with pytest.raises(openai.InternalServerError, match="host two is away") as caught:
        chat(client, stream=True)
    assert (caught.value.status_code, caught.value.code) == (503, "model_unavailable")
    assert caught.value.response.headers["Retry-After"] == "7"
    health = httpx.get(str(client.base_url).replace("/v1/", "/health"))
    assert health.status_code == 503
    body = health.json()
    assert (body["status"], body["error"], body["since"], body["recoveries"]) == ("waiting", "host two is away", 5.0, 1)
    assert body["last_recovery"] == {"cause": "lost", "at": 1.0, "seconds": 2.5, "requests": 3, "kept": []}


class BrokenEngine(FakeEngine):
    """An engine with a bug of its own."""

    async def generate(self, prompt: Any, params: Any, images: Any = ()) -> Any:
        raise KeyError("a secret of the server") from OSError("why")
        yield


def test_a_bug_is_not_shown(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    client = serving(BrokenEngine())
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client)
    assert caught.value.status_code == 500
    assert "secret" not in str(caught.value.body)
    assert "secret" in caplog.text
    assert "OSError: why" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_stops_its_sequences(serving: Serving, stream: bool, n: int) -> None:
    engine = FakeEngine(hold=asyncio.Event())
    client = serving(engine)
    with pytest.raises(openai.APITimeoutError):
        chat(client.with_options(timeout=0.2), stream=stream, n=n)
    until(lambda: engine.active == 0)
    assert [call.ended for call in engine.calls] == ["cancelled"] * n


def test_a_client_that_leaves_mid_stream(serving: Serving) -> None:
    engine = FakeEngine(delay=0.02)
    client = serving(engine)
    stream = chat(client, stream=True)
    for _ in range(4):
        next(stream)
    stream.close()
    until(lambda: engine.active == 0)
    assert engine.calls[0].ended == "cancelled"
    assert engine.calls[0].made < 20


def test_too_many_sequences(serving: Serving) -> None:
    engine = FakeEngine(hold=asyncio.Event())
    client = serving(engine, max_sequences=2)
    with pytest.raises(openai.BadRequestError, match="at most 2"):
        chat(client, n=3)
    with httpx.Client() as other:
        request = other.build_request(
            "POST", f"{client.base_url}chat/completions", json={"messages": HELLO, "n": 2}, timeout=0.5
        )
        with pytest.raises(httpx.ReadTimeout):
            other.send(request)
        # The two sequences above have been cancelled, or soon will be.
    until(lambda: engine.active == 0)
    engine.hold = None
    assert chat(client, n=2).choices


def test_each_replica_that_is_ready_has_room_for_as_many(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(delay=0.05)
    replicas = (ReplicaHealth("ready"), ReplicaHealth("recovering"), ReplicaHealth("ready"))
    monkeypatch.setattr(engine, "health", lambda: Health("ready", replicas=replicas))
    client = serving(engine, max_sequences=2)
    streams = [chat(client, stream=True, n=2) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match="4 sequences are being served, of at most 4"):
        chat(client)
    for stream in streams:
        stream.close()


def test_a_full_server_asks_to_come_back(serving: Serving) -> None:
    engine = FakeEngine(delay=0.05)
    client = serving(engine, max_sequences=2)
    stream = chat(client, stream=True, n=2)
    next(stream)
    with pytest.raises(openai.RateLimitError) as caught:
        chat(client)
    assert caught.value.response.headers["retry-after"] == "1"
    stream.close()


def test_health_says_over_how_many_ranks_keys_and_values_are_shared_out() -> None:
    by_pages = Plan((Stage(("a", "b", "c"), 0, 8, (Share(),) * 3, context=True),))
    for plan, told in ((by_pages, 3), (tensor_plan(), None)):
        with running(FakeEngine(plan=plan)) as url:
            assert httpx.get(f"{url}/health").json().get("context_parallel") == told

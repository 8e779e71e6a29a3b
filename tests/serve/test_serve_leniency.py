"""Forms of requests that real clients send and other servers take, web pages, and the API's own description."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from running import running

from ferrule.errors import ConfigError
from ferrule.serve.app import create_app
from ferrule.serve.http.auth import check_origins

MODEL = "acme/fake-1b"
HELLO: Any = [{"role": "user", "content": "hi"}]
PAGE = "https://chat.example"


def post(url: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "ab", **body}, timeout=10)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_whole_numbers_may_be_written_as_fractions(engine: FakeEngine, shared_url: str) -> None:
    post(shared_url, max_tokens=8.0, n=1.0, top_k=4.0, seed=3.0)
    params = engine.calls[0].params
    assert (params.max_tokens, params.top_k, params.seed) == (8, 4, 3)
    assert all(type(value) is int for value in (params.max_tokens, params.top_k, params.seed))


def test_minus_one_token_is_no_limit(engine: FakeEngine, shared_url: str) -> None:
    post(shared_url, max_tokens=-1)
    assert engine.calls[0].params.max_tokens is None


def test_no_token_at_all_leaves_the_echo(engine: FakeEngine, shared_url: str) -> None:
    made = post(shared_url, max_tokens=0, echo=True)
    assert (made["choices"][0]["text"], made["choices"][0]["finish_reason"]) == ("ab", "length")
    assert made["usage"]["completion_tokens"] == 0
    assert not engine.calls


def test_no_share_of_the_likeliest_is_the_likeliest(engine: FakeEngine, shared_url: str) -> None:
    post(shared_url, top_p=0, top_k=50)
    assert (engine.calls[0].params.top_p, engine.calls[0].params.top_k) == (1.0, 1)


def test_stream_options_without_a_stream_say_nothing(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, stream_options={"include_usage": True}, max_tokens=2
    )
    assert answer.usage is not None


def preflight(url: str, origin: str) -> httpx.Response:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    return httpx.options(
        f"{url}/v1/completions", headers={**asked, "Access-Control-Request-Headers": "authorization,content-type"}
    )


def test_a_web_page_of_an_allowed_origin_may_ask_and_read_and_no_other() -> None:
    with running(FakeEngine(), api_key="secret", origins=(PAGE,)) as url:
        granted = preflight(url, PAGE)
        assert (granted.status_code, granted.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "authorization" in granted.headers["access-control-allow-headers"]
        other = preflight(url, "https://evil.example")
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers
        headers = {"Origin": PAGE, "Authorization": "Bearer secret"}
        answer = httpx.get(f"{url}/v1/models", headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        refused = httpx.get(f"{url}/v1/models", headers={"Origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


def test_without_allowed_origins_no_page_may_ask(shared_url: str) -> None:
    assert "access-control-allow-origin" not in preflight(shared_url, PAGE).headers


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "https://a/b", ""])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="an origin is a scheme"):
        check_origins([origin], keyed=True)


def test_every_page_is_let_in_only_where_a_key_is_needed() -> None:
    check_origins(["*", PAGE, "http://localhost:3000", "app://obsidian.md"], keyed=True)
    with pytest.raises(ConfigError, match="set FERRULE_API_KEY"):
        check_origins(["*"], keyed=False)


def test_the_description_names_the_errors_that_come_and_no_others() -> None:
    description = create_app(FakeEngine(), api_key=None).openapi()
    statuses = {
        path: {status for operation in methods.values() for status in operation["responses"]}
        for path, methods in description["paths"].items()
    }
    posts = {"200", "400", "401", "403", "404", "408", "413", "415", "429", "431", "500", "503"}
    assert statuses["/v1/chat/completions"] == statuses["/v1/completions"] == posts
    assert statuses["/v1/models/{name}"] == {"200", "400", "401", "403", "404", "408", "431", "503"}
    assert set(description["components"]["schemas"]["http.ErrorBody"]["properties"]) == {"error"}
    answer = description["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert answer["application/json"]["schema"] == {"$ref": "#/components/schemas/openai.ChatBody"}
    assert set(answer["text/event-stream"]["schema"]["properties"]) == {"event", "data"}
    assert "choices" in description["components"]["schemas"]["openai.ChatBody"]["required"]
    assert "securitySchemes" not in description["components"]
    keyed = create_app(FakeEngine(), api_key="key").openapi()
    assert keyed["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in keyed["paths"]["/health"]["get"]
    assert "HTTPValidationError" not in description["components"]["schemas"]

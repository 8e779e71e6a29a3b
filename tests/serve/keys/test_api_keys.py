"""API keys at the server: who is let in, to which models, how often."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fake_engine import FakeEngine
from running import running, until
from starlette.datastructures import Headers

from ferrule.errors import ConfigError
from ferrule.serve.http.errors import ApiError
from ferrule.serve.http.exchange import current_exchange
from ferrule.serve.keys.keyring import Keyring, given_key
from ferrule.serve.keys.limits import Bucket, Limiter, Limits
from ferrule.serve.keys.record import ApiKey, KeysFile, add_key, digest_of, expiry, new_key, read_keys, remove_key
from ferrule.serve.models import OneModel

BODY = {"prompt": "ab", "max_tokens": 5}


def made(file: Path, name: str, **limits: Any) -> str:
    key = new_key()
    add_key(file, ApiKey(name, digest_of(key.encode()), key[:8], 0.0, **limits))
    return key


def post(url: str, key: str, body: dict[str, Any] = BODY) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=10)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    return tmp_path / "keys.json"


def test_the_file_holds_no_key_and_is_for_its_user_alone(file: Path) -> None:
    key = made(file, "one")
    assert len(key) == 3 + 43
    text = file.read_text()
    assert key not in text
    assert key[8:] not in text
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="there is a key 'one': revoke it first"):
        made(file, "one")
    remove_key(file, "one")
    assert read_keys(file) == KeysFile()
    with pytest.raises(ConfigError, match="there is no key 'one'"):
        remove_key(file, "one")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Keyring(None, file)
    file.chmod(0o600)
    file.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Keyring(None, file)


def test_keys_are_taken_and_revoked_while_the_server_runs(file: Path) -> None:
    with running(FakeEngine(), keys=file) as url:
        assert httpx.post(f"{url}/v1/completions", json=BODY).status_code == 200
        one = made(file, "one")
        refused = httpx.post(f"{url}/v1/completions", json=BODY)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        two = made(file, "two")
        assert [post(url, key).status_code for key in (one, two, f"{one}x", "none")] == [200, 200, 401, 401]
        assert httpx.get(f"{url}/health").status_code == httpx.head(f"{url}/health").status_code == 200
        kept = openai.OpenAI(base_url=f"{url}/v1", api_key=one).responses.create(model="fake-1b", input="?").id
        there = f"{url}/v1/responses/{kept}"
        assert [httpx.get(there, headers={"x-api-key": key}).status_code for key in (one, two)] == [200, 404]
        remove_key(file, "one")
        assert [post(url, key).status_code for key in (one, two)] == [401, 200]
        again = made(file, "one")
        assert httpx.get(there, headers={"x-api-key": again}).status_code == 404, "the name is not the key"
        file.write_text("{")  # as if it were damaged
        assert [post(url, key).status_code for key in (one, two)] == [401, 200]
        file.unlink()
        assert [post(url, key).status_code for key in (two, "none")] == [401, 401], "it does not open again"


def test_the_one_key_goes_on_beside_the_file(file: Path) -> None:
    key = made(file, "one")
    with running(FakeEngine(), keys=file, api_key="secret") as url:
        assert [post(url, each).status_code for each in ("secret", key, "Secret")] == [200, 200, 401]
        other = httpx.post(f"{url}/v1/completions", json=BODY, headers={"x-api-key": "secret"})
        assert other.status_code == 200
        with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as client:
            assert client.models.list().data, "Anthropic's client sends x-api-key"


def test_a_key_is_found_in_either_header() -> None:
    assert given_key(Headers({"authorization": "bearer  a "})) == b"a"
    assert given_key(Headers({"x-api-key": "b"})) == b"b"
    assert given_key(Headers({"authorization": "Basic c", "x-api-key": "b"})) == b"b"
    assert given_key(Headers({"authorization": "Basic c"})) == b""


def test_a_key_ends(file: Path) -> None:
    now = 1000.0
    key = made(file, "one", expires=2000.0)
    ring = Keyring(None, file, wall=lambda: now)
    headers = Headers({"authorization": f"Bearer {key}"})
    assert ring.caller(headers).name == "one"
    now = 2000.0
    with pytest.raises(ApiError, match="has expired") as error:
        ring.caller(headers)
    assert (error.value.status, error.value.code) == (401, "expired_api_key")
    assert expiry("30d", 5.0) == 5 + 30 * 86400
    assert expiry("1970-01-02", 5.0) == 86400
    for text in ("", "tomorrow", "1970-01-01", "-3d"):
        with pytest.raises(ConfigError, match="--expires"):
            expiry(text, 5.0)


def test_a_key_sees_its_models_only(file: Path) -> None:
    short, full, other = (
        made(file, name, models=(model,)) for name, model in (("a", "fake-1b"), ("b", "acme/fake-1b"), ("c", "gpt"))
    )
    with running(FakeEngine(), keys=file) as url:

        def seen(key: str, **named: str) -> tuple[int, int, int]:
            models = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}).json()["data"]
            asked = [post(url, key, BODY | {"model": name}).status_code for name in ("acme/fake-1b", "fake-1b")]
            assert asked[0] == asked[1]
            return len(models), asked[0], post(url, key).status_code

        assert seen(short) == seen(full) == (1, 200, 200)
        assert seen(other) == (0, 404, 404)
        refusal = post(url, other, BODY | {"model": "acme/fake-1b"}).json()["error"]
        assert refusal["code"] == "model_not_found"
        assert "fake-1b' is not served here, or not for this key, which is for 'gpt'" in refusal["message"]


def test_buckets_fill_up_and_owe() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(90, 0.0)
    assert bucket.level(0.0) == -30
    assert bucket.seconds_until(1, 0.0) == 31
    assert bucket.level(31.0) == 1
    assert bucket.level(1000.0) == 60


def test_limits_count_requests_tokens_and_those_at_a_time() -> None:
    limiter = Limiter(Limits(2, 10, 1), 0.0)
    assert limiter.begin(0.0) is None
    assert "at most 1" in (limiter.begin(0.0) or pytest.fail("taken")).message
    limiter.use(12, 0.0)
    limiter.end()
    refused = limiter.begin(0.0)
    assert refused is not None
    assert refused.seconds == pytest.approx(18)
    assert "10 tokens" in refused.message
    assert limiter.begin(18.0) is None
    limiter.end()
    refused = limiter.begin(18.0)
    assert refused is not None
    assert "2 requests" in refused.message
    assert limiter.headers(18.0) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "42.000s",
        "x-ratelimit-limit-tokens": "10",
        "x-ratelimit-remaining-tokens": "1",
        "x-ratelimit-reset-tokens": "54.000s",
    }


def test_a_client_at_its_limit_is_told_when_to_come_back(file: Path) -> None:
    key = made(file, "one", requests_per_minute=2, tokens_per_minute=1000)
    tokens = made(file, "two", tokens_per_minute=3)
    with running(FakeEngine(), keys=file, origins=["https://chat.example"]) as url:
        first = post(url, key)
        usage = first.json()["usage"]["total_tokens"]
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert 1000 >= int(first.headers["x-ratelimit-remaining-tokens"]) >= 1000 - usage
        listed = httpx.get(f"{url}/v1/models", headers={"x-api-key": key})  # asks no model
        assert listed.headers["x-ratelimit-remaining-requests"] == "1"
        assert int(listed.headers["x-ratelimit-remaining-tokens"]) <= 1000 - usage + 1
        assert post(url, key).status_code == 200
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client,
            pytest.raises(openai.RateLimitError) as error,
        ):
            client.completions.create(model="acme/fake-1b", prompt="ab")
        answer = error.value.response
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert error.value.code == "rate_limit_exceeded"
        assert post(url, tokens).status_code == 200
        assert post(url, tokens).status_code == 429, "the first one has taken more than there was"
        shown = httpx.get(f"{url}/v1/models", headers={"x-api-key": key, "Origin": "https://chat.example"})
        assert "x-ratelimit-limit-requests" in shown.headers["access-control-expose-headers"]


def test_requests_at_a_time_are_counted_until_their_answer_ends(file: Path) -> None:
    key, other = made(file, "one", concurrent=1), made(file, "two")
    engine = FakeEngine(hold=asyncio.Event())
    with running(engine, keys=file) as url, ThreadPoolExecutor() as pool:
        held = pool.submit(post, url, key)
        until(lambda: engine.active == 1)
        refused = post(url, key)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        with pytest.raises(httpx.ReadTimeout):  # a client of another key, that leaves
            httpx.post(f"{url}/v1/completions", json=BODY, headers={"x-api-key": other}, timeout=0.2)
        assert engine.hold is not None
        engine.hold.set()
        assert held.result(10).status_code == 200
        assert post(url, key).status_code == 200


def test_changed_limits_hold_at_once_and_others_go_on(file: Path) -> None:
    key = made(file, "one", requests_per_minute=5)
    ring, headers = Keyring(None, file), Headers({"x-api-key": key})
    limiter = ring.caller(headers).limiter
    made(file, "two")
    assert ring.caller(headers).limiter is limiter is not None
    found = read_keys(file)
    assert found is not None
    remove_key(file, "one")
    add_key(file, ApiKey("one", found.keys[0].digest, key[:8], 0.0, requests_per_minute=6))
    changed = ring.caller(headers).limiter
    assert changed is not None
    assert changed.limits.requests_per_minute == 6


def test_routes_know_who_asks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, seen = made(file, "one", concurrent=3), []
    service = OneModel.service

    async def noted(self: OneModel, name: str | None) -> Any:
        seen.append(current_exchange().caller)
        return await service(self, name)

    monkeypatch.setattr(OneModel, "service", noted)
    with running(FakeEngine(), keys=file) as url:
        post(url, key)
    (caller,) = seen
    assert caller.name == "one"
    assert caller.limiter.limits == Limits(concurrent=3)


def test_too_many_headers_are_refused() -> None:
    with running(FakeEngine()) as url:
        many = {f"x-{at}": "1" for at in range(120)}
        assert httpx.get(f"{url}/health", headers=many).status_code == 431
        large = httpx.get(f"{url}/v1/models", headers={"x-large": "a" * 40_000})
        assert (large.status_code, large.json()["error"]["code"]) == (431, "headers_too_large")
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nx: " + b"a" * 66_000)
            answer = b""
            while more := client.recv(1 << 16):
                answer += more
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]["code"] == "not_http"

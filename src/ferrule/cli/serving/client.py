"""A small client of the OpenAI API, for `ferrule chat`: needs nothing but httpx, so the base install has it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from ferrule.config import is_loopback
from ferrule.errors import ConfigError, EngineError, FerruleError

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 600.0
"""A long prompt on a slow machine takes minutes before the first word."""


class Reasoning(str):
    """Piece of an answer that the model says to itself."""

    __slots__ = ()


class Card(NamedTuple):
    """What a server tells of a model: the most tokens of its ``context``, and what it is ``able`` to do."""

    context: int | None = None
    able: frozenset[str] = frozenset()


class ChatServer:
    """A server of the OpenAI API. ``url`` is its address with or without ``/v1``; ``trusted``: a file of certificates
    (PEM) to trust beside those that this system does.

    Raises `ConfigError` when the address cannot be used or the key or model is refused, `EngineError` when the
    server cannot be reached or fails.
    """

    def __init__(self, url: str, api_key: str | None = None, trusted: Path | None = None) -> None:
        self.url = base_url(url)
        headers = {b"Authorization": f"Bearer {api_key}".encode()} if api_key else {}
        # Proxies are for what is elsewhere.
        self._http = httpx.Client(
            verify=True if trusted is None else _trusting(trusted),
            headers=headers,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=not is_loopback(httpx.URL(self.url).host),
        )

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """The names of the models that are served."""
        return list(self.cards())

    def cards(self) -> dict[str, Card]:
        """The models that are served, by name."""
        try:
            response = self._http.get(f"{self.url}/models")
            _check(response)
            return {
                str(each["id"]): Card(each.get("max_model_len"), frozenset(each.get("capabilities") or ()))
                for each in response.json()["data"]
            }
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self.url} does not speak the OpenAI API; is the address right?") from error

    def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        """Answer to one request, as JSON."""
        try:
            response = self._http.post(f"{self.url}{path}", json=body, headers=headers)
            _check(response)
            return response.json()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise EngineError(f"{self.url}{path} answered with something that is not JSON") from error

    def answer(self, model: str, messages: Sequence[dict[str, str]], **options: Any) -> Generator[str]:
        """The model's next message, piece by piece. Closing the iterator ends it at the server too."""
        body = {"model": model, "messages": list(messages), "stream": True, **options}
        try:
            with self._http.stream("POST", f"{self.url}/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                _check(response)
                yield from pieces(response.iter_lines())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.HTTPError) -> EngineError:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return EngineError(
                f"the certificate of {self.url} is not trusted here ({error}); give it, or the one of its "
                "authority, with --cacert, and ask for a name that it is for"
            )
        if isinstance(error, httpx.ConnectError):
            return EngineError(f"no server answers at {self.url} ({error}); is `ferrule serve` running there?")
        if isinstance(error, httpx.TimeoutException):
            return EngineError(f"the server at {self.url} did not answer in time")
        ended = self.url.startswith("http:") and isinstance(error, httpx.RemoteProtocolError)
        hint = " (does it speak https?)" if ended else ""
        return EngineError(f"the connection to {self.url} broke: {error}{hint}")


def _trusting(file: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(file)
    except OSError as error:  # also what is no certificate
        raise ConfigError(f"no certificates can be read from {file}: {error.strerror or error} (--cacert)") from None
    return context


def base_url(url: str) -> str:
    """``url`` with a scheme and ending in /v1. Raises `ConfigError` for what is no HTTP address."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parsed = httpx.URL(whole)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url!r} is not an address ({error}); write for example http://127.0.0.1:8420") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{url!r} is not an HTTP address; write for example http://127.0.0.1:8420")
    whole = whole.rstrip("/")
    return whole if whole.endswith("/v1") else f"{whole}/v1"


def pieces(lines: Iterator[str]) -> Iterator[str]:
    """The text in a stream of server-sent events, `Reasoning` as such. Raises `EngineError` where the server reports
    one, or stops short."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise EngineError(f"the server sent something that is not JSON: {data[:80]}") from error
        if "error" in event:
            raise EngineError(f"the server reports: {event['error'].get('message', 'an error')}")
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            if delta.get("reasoning_content"):
                yield Reasoning(delta["reasoning_content"])
            if delta.get("content"):
                yield delta["content"]
    raise EngineError("the server closed the connection before the answer was complete")


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    message = _told(response) or f"status {response.status_code}"
    if response.status_code == 401:
        raise ConfigError(f"the server refuses the API key: {message} (--api-key or FERRULE_API_KEY)")
    if response.status_code in (403, 404):
        raise ConfigError(f"the server refuses: {message}")
    if response.status_code >= 500:
        raise EngineError(f"the server reports: {message}")
    raise FerruleError(f"the server refuses: {message}")


def _told(response: httpx.Response) -> str | None:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):  # not a server of this API; the status must do
        return None

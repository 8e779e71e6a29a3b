"""One real request, by the API that a client speaks."""

from __future__ import annotations

from typing import Any

from ferrule.cli.connect.clients import Api
from ferrule.cli.serving.client import ChatServer
from ferrule.errors import EngineError

QUESTION = "Say hello."
MOST_TOKENS = 32


def ask(server: ChatServer, api: Api, model: str) -> str:
    """What ``model`` answers by ``api``: a sentence for a person. Raises `ConfigError` and `EngineError` as
    `ChatServer` does."""
    turns = [{"role": "user", "content": QUESTION}]
    match api:
        case "messages":
            headers = {"anthropic-version": "2023-06-01"}
            body = {"model": model, "max_tokens": MOST_TOKENS, "messages": turns}
            answer = server.post("/messages", body, headers)
        case "responses":
            answer = server.post("/responses", {"model": model, "max_output_tokens": MOST_TOKENS, "input": QUESTION})
        case "chat":
            body = {"model": model, "max_tokens": MOST_TOKENS, "messages": turns}
            answer = server.post("/chat/completions", body)
    try:
        text, thought = _READ[api](answer)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise EngineError(f"{server.url} answered in another form than that of the API of {api}") from error
    said = " ".join(text.split())
    if said:
        return f"it answered {said[:60]!r}"
    return "it answered with reasoning, cut off" if thought else "it answered with nothing"


def _messages(answer: Any) -> tuple[str, bool]:
    blocks = answer["content"]
    return "".join(each.get("text", "") for each in blocks), any(each["type"] == "thinking" for each in blocks)


def _responses(answer: Any) -> tuple[str, bool]:
    items = answer["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    return "".join(part.get("text", "") for part in parts), any(item["type"] == "reasoning" for item in items)


def _chat(answer: Any) -> tuple[str, bool]:
    message = answer["choices"][0]["message"]
    return message["content"] or "", bool(message.get("reasoning_content"))


_READ = {"messages": _messages, "responses": _responses, "chat": _chat}

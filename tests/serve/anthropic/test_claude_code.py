"""Requests in the shapes that Claude Code sends, made from its public documentation: the fields of the Messages API
(https://platform.claude.com/docs/en/api/messages), gateways (https://code.claude.com/docs/en/llm-gateway) and the
block that differs in every request (https://www.agentpatterns.ai/context-engineering/kv-cache-invalidation-local-inference/)."""

from __future__ import annotations

import json
from typing import Any

import httpx
from messages_client import MODEL, prompt_of, scripted
from running import running

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "authorization": "Bearer sesame",
    "user-agent": "claude-cli/2.1.304 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
}
KEPT = {"cache_control": {"type": "ephemeral"}}
BASH: Any = {
    "name": "Bash",
    "description": "Executes a bash command",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}


def agent_request(number: int, messages: Any) -> dict[str, Any]:
    """A turn of the main conversation; ``number`` makes it differ as two requests do."""
    billing = f"x-anthropic-billing-header: cc_version=2.1.304.abc; cc_entrypoint=cli; cch={number:05x};"
    return {
        "model": MODEL,
        "messages": messages,
        "system": [
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are Claude Code.", **KEPT},
            {"type": "text", "text": "Be careful.", **KEPT},
        ],
        "tools": [BASH, {"name": "Read", "description": "Reads a file", "input_schema": {"type": "object"}, **KEPT}],
        "metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s"})},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
    }


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    pairs = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    made = [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]
    assert all(name == event["type"] for name, event in made)
    return [event for _, event in made]


def test_a_session() -> None:
    call = 'I look.\n<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
    engine = scripted(f"Hm.</think>{call}")
    asked: Any = {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nhi\n</system-reminder>"}]}
    asked["content"].append({"type": "text", "text": "What is here?", **KEPT})
    with running(engine, api_key="sesame") as url, httpx.Client(base_url=url, headers=HEADERS, timeout=10) as client:
        assert client.head("/").status_code == 200  # its look whether anybody is there
        listed = client.get("/v1/models?limit=1000").json()
        assert [each["id"] for each in listed["data"]] == [MODEL]
        quota = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
        assert client.post("/v1/messages?beta=true", json=quota).json()["stop_reason"] == "max_tokens"

        first = events(client.post("/v1/messages?beta=true", json=agent_request(1, [asked])))
        before = engine.calls[-1].prompt
        (started,) = [each for each in first if each.get("content_block", {}).get("type") == "tool_use"]
        used = {**started["content_block"], "input": {"command": "ls"}}
        thought = [each["delta"] for each in first if each["type"] == "content_block_delta" and each["index"] == 0]
        turns = [
            asked,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": thought[-1]["signature"]},
                    {"type": "redacted_thinking", "data": "AAAA"},
                    {"type": "text", "text": "I look."},
                    used,
                ],
            },
            {
                "role": "user",
                "content": [
                    {"tool_use_id": used["id"], "type": "tool_result", "content": "a.py", "is_error": False, **KEPT}
                ],
            },
        ]
        events(client.post("/v1/messages?beta=true", json=agent_request(2, turns)))
        counted = client.post(
            "/v1/messages/count_tokens?beta=true",
            json={key: value for key, value in agent_request(3, turns).items() if key not in ("max_tokens", "stream")},
        )
        assert counted.json() == {"input_tokens": len(engine.calls[-1].prompt)}

    shown = prompt_of(engine)
    assert "x-anthropic-billing-header" not in shown
    assert "<|system|>You are Claude Code.\nBe careful.<|end|>" in shown
    assert shown.endswith(
        "What is here?<|end|><|assistant|>I look.(thought Hm.)(Bash|[('command', 'ls')])<|end|>"
        "<|tool|>a.py=Bash<|end|>medium<|assistant|><think>\n"
    )
    # What was computed for the first request is the beginning of the second one: only what is new costs time.
    answer = len(engine.tokenizer.encode("medium<|assistant|><think>\n"))
    assert engine.calls[-1].prompt[: len(before) - answer] == before[:-answer]


def test_a_search_alone_is_refused_rather_than_made_up() -> None:
    body = {
        "model": MODEL,
        "max_tokens": 32000,
        "system": [{"type": "text", "text": "You are an assistant for performing a web search tool use"}],
        "messages": [{"role": "user", "content": "Perform a web search for the query: ferrules"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    }
    with running(scripted()) as url:
        answer = httpx.post(f"{url}/v1/messages?beta=true", json=body, headers=HEADERS)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "web_search_20250305 runs on Anthropic's servers" in answer.json()["error"]["message"]


def test_a_title_of_a_session_is_json() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    engine = scripted('{"title": "Ferrules"}')
    body = {
        "model": MODEL,
        "max_tokens": 32000,
        "system": [{"type": "text", "text": "Generate a title."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "ferrules?"}]}],
        "tools": [],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "thinking": {"type": "disabled"},
    }
    with running(engine) as url:
        answer = httpx.post(f"{url}/v1/messages?beta=true", json=body, headers=HEADERS).json()
    assert [json.loads(block["text"]) for block in answer["content"]] == [{"title": "Ferrules"}]
    assert engine.calls[-1].params.constraint is not None

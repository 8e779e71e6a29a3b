"""Codex's requests, in the shape that its public documentation and its open source give them, over two turns."""

from __future__ import annotations

import json
from typing import Any

import httpx
from fake_engine import FakeEngine, byte_level
from running import running
from test_responses import EVENT
from test_serve_tools import BEGIN, END, TEMPLATE

HEADERS = {
    "Accept": "text/event-stream",
    "Authorization": "Bearer secret",
    "originator": "codex_cli_rs",
    "User-Agent": "codex_cli_rs/1.0.0 (Linux; x86_64) xterm",
    "session_id": "0199a213-81c0-7800-8aa1-bbab2a035a53",
}
EXEC = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "workdir": {"type": "string"}},
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
APPLY_PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files; the input is a patch, not JSON",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /.+/'},
}
MCP = {
    "type": "namespace",
    "name": "mcp__docs",
    "description": "Documents",
    "tools": [
        {"type": "function", "name": "read", "strict": False, "parameters": {"type": "object", "properties": {}}}
    ],
}
SEARCH = {"type": "web_search", "external_web_access": False}
PATCH = "*** Begin Patch\n*** End Patch"


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def request(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": "acme/fake-1b",
        "instructions": "You are a coding agent.",
        "input": items,
        "tools": [EXEC, APPLY_PATCH, MCP, SEARCH],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": HEADERS["session_id"],
        "text": {"verbosity": "low"},
        "client_metadata": {"session": HEADERS["session_id"]},
    }


def turn(url: str, items: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Items that are done, as Codex takes them from the stream, and the response of the last event."""
    with httpx.stream("POST", f"{url}/v1/responses", json=request(items), headers=HEADERS, timeout=10) as answer:
        assert answer.status_code == 200
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    for event in events:
        EVENT.validate_json(event)
    told = [json.loads(event) for event in events]
    assert told[-1]["type"] == "response.completed"
    return [event["item"] for event in told if event["type"] == "response.output_item.done"], told[-1]["response"]


def test_two_turns_of_a_coding_agent() -> None:
    engine = FakeEngine(tokenizer=byte_level(TEMPLATE, (BEGIN, END)), max_context=4096)
    call = {"name": "exec_command", "arguments": {"cmd": "ls"}}
    patch = {"name": "apply_patch", "arguments": {"input": PATCH}}
    talk = [said("developer", "Rules."), said("user", "<environment_context/>"), said("user", "Fix it.")]
    with running(engine, api_key="secret") as url:
        engine.text = f"<think>Look first.</think><tool_call>{json.dumps(call)}</tool_call>"
        items, response = turn(url, talk)
        assert [item["type"] for item in items] == ["reasoning", "function_call"]
        assert (items[0]["summary"], items[1]["arguments"]) == (
            [{"text": "Look first.", "type": "summary_text"}],
            '{"cmd": "ls"}',
        )
        assert [tool["type"] for tool in response["tools"]] == ["function", "custom", "namespace"]
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0

        talk += [{**items[0], "encrypted_content": None}, {key: items[1][key] for key in items[1] if key != "status"}]
        talk.append({"type": "function_call_output", "call_id": items[1]["call_id"], "output": "a.py"})
        engine.text = f"I change it.<tool_call>{json.dumps(patch)}</tool_call>"
        items, _ = turn(url, talk)
        assert [item["type"] for item in items] == ["message", "custom_tool_call"]
        assert items[1]["input"] == PATCH

        talk += [*items, {"type": "custom_tool_call_output", "call_id": items[1]["call_id"], "output": "Success"}]
        engine.text = "Done."
        items, _ = turn(url, talk)
        assert items[0]["content"][0]["text"] == "Done."
        gone = httpx.get(f"{url}/v1/responses/{response['id']}", headers=HEADERS)
        assert gone.status_code == 404  # as store was false
    shown = engine.tokenizer.decode(engine.calls[-1].prompt, skip_special_tokens=False)
    assert shown.endswith(
        "<|system|>You are a coding agent.\n\nRules.<|end|><|user|><environment_context/>\n\nFix it.<|end|>"
        "<|assistant|>Look first.(exec_command|[('cmd', 'ls')])<|end|><|tool|>a.py=exec_command<|end|>"
        f"<|assistant|>I change it.(apply_patch|[('input', {PATCH!r})])<|end|>"
        "<|tool|>Success=apply_patch<|end|>medium<|assistant|>"
    )
    assert "web_search" not in shown

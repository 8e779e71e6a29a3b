"""From a request of Anthropic's to `ChatRequest`, which the core reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import ValidationError

from ferrule.serve.anthropic.blocks import messages_of, system_text
from ferrule.serve.anthropic.schemas import CountRequest, MessagesRequest, OfferedTool, ToolChoice
from ferrule.serve.http.errors import validation_error
from ferrule.serve.openai.schemas import ChatRequest, unsupported

RUN_BY_ANTHROPIC: Final = ("web_search", "web_fetch", "code_execution", "tool_search_tool")
"""Beginnings of the types of tools that Anthropic's own servers run. Beside the client's tools they may be left out:
models then do without. Claude Code's search asks with nothing else, and the answer would be made up
(https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview)."""
EFFORT: Final = {"xhigh": "high", "max": "high"}
"""Efforts that no open model has learned, as the highest that they have."""


def chat_request(body: CountRequest) -> ChatRequest:
    """``body`` in OpenAI's words. Raises `RequestError` for what cannot be done here, `ApiError` 400 for what
    `ChatRequest` refuses."""
    for field in ("mcp_servers", "container"):
        if getattr(body, field):
            raise unsupported(field, "it is for what Anthropic's servers run; connect such tools in the client")
    system = system_text(body.system)
    messages = [{"role": "system", "content": system}] if system else []
    fields: dict[str, Any] = {"messages": [*messages, *messages_of(body.messages)]}
    last = fields["messages"][-1] if fields["messages"] else {"role": "user"}
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        fields["continue_final_message"] = True
    tools = _tools(body.tools or ())
    if tools:
        fields["tools"] = tools
    if body.tool_choice is not None:
        fields |= _choice(body.tool_choice, {tool["function"]["name"] for tool in tools})
    fields |= _reasoning(body) | _format(body)
    if isinstance(body, MessagesRequest):
        fields |= {
            "model": body.model,
            "stream": body.stream,
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
        }
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise validation_error(error.errors()) from None


def _tools(given: Sequence[OfferedTool]) -> list[dict[str, Any]]:
    """The client's own tools as OpenAI's. Raises `RequestError` for Anthropic's, unless they may be left out."""
    made, left_out = [], list[str]()
    for at, tool in enumerate(given):
        kind = tool.type or "custom"
        if kind.startswith(RUN_BY_ANTHROPIC):
            left_out.append(kind)
        elif kind != "custom":
            raise unsupported(f"tools.{at}", f"{kind} is known to Anthropic's models; send it with an input_schema")
        elif not tool.name or tool.input_schema is None:
            raise unsupported(f"tools.{at}", "a tool needs a name and an input_schema")
        else:
            function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
            if tool.description is not None:
                function["description"] = tool.description
            if tool.strict is not None:
                function["strict"] = tool.strict
            made.append({"type": "function", "function": function})
    if left_out and not made:
        raise unsupported("tools", f"{left_out[0]} runs on Anthropic's servers; there is none here")
    return made


def _choice(choice: ToolChoice, offered: set[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    match choice.type:
        case "any":
            fields["tool_choice"] = "required"
        case "tool":
            if choice.name not in offered:
                raise unsupported("tool_choice", f"there is no tool {choice.name!r} of yours among tools")
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        case other:
            fields["tool_choice"] = other
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _reasoning(body: CountRequest) -> dict[str, Any]:
    """Variables by which templates turn reasoning on and off, and its effort. Without ``thinking`` the model's own
    default holds."""
    fields: dict[str, Any] = {}
    thinking = body.thinking
    if thinking is not None:
        on = thinking.type != "disabled"
        fields["chat_template_kwargs"] = {"enable_thinking": on, "thinking": on}
        if thinking.budget_tokens is not None:
            fields["reasoning_budget"] = thinking.budget_tokens
    effort = body.output_config.effort if body.output_config is not None else None
    if effort is not None:
        fields["reasoning_effort"] = EFFORT.get(effort, effort)
    return fields


def _format(body: CountRequest) -> dict[str, Any]:
    asked = (body.output_config.format if body.output_config is not None else None) or body.output_format
    if asked is None:
        return {}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": asked.schema_}}}

"""The bodies of Anthropic's API, checked field by field. Fields that are not listed are ignored, as its betas' are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ferrule.serve.openai.schemas import Stops, Whole
from ferrule.serve.tools.messages import Body


def blocks(value: Any) -> Any:
    """Content as a list of blocks: a string is one of text."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of content blocks")
    for at, block in enumerate(value):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise ValueError(f'block {at} must be an object such as {{"type": "text", "text": "..."}}')
    return value


Block = dict[str, Any]
Blocks = Annotated[list[Block], BeforeValidator(blocks, json_schema_input_type=str | list[Block] | None)]


class Turn(Body):
    """A message. Conversations may also have ``system`` ones in their middle."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class OfferedTool(Body):
    """A tool. ``type``: None or ``custom`` for the client's own, by the JSON schema of its input; else one of
    Anthropic's, with its date in the name."""

    name: str = Field("", max_length=256)
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Whole | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Body):
    """The body of ``POST /v1/messages/count_tokens``."""

    model: str | None = None
    messages: list[Turn] = Field(min_length=1)
    system: Blocks = Field(default_factory=list)
    tools: list[OfferedTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None


class MessagesRequest(CountRequest):
    """The body of ``POST /v1/messages``."""

    max_tokens: Whole = Field(ge=0)
    stream: bool | None = None
    stop_sequences: Stops = Field(default_factory=list)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: Whole | None = Field(None, ge=-1)

"""Body of ``POST /v1/responses``. Fields that are not listed are ignored; items and tools are read by their types."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from ferrule.errors import RequestError
from ferrule.serve.openai.schemas import MAX_TOP_LOGPROBS, SamplingRequest, TokenLimit, Whole, unsupported
from ferrule.serve.tools.messages import Body, Clean, clean_text

MAX_ITEMS: Final = 10_000
LOGPROBS: Final = "message.output_text.logprobs"
"""What `include` may name and is there; the rest belongs to tools of OpenAI's own, or is there anyway."""
PASSED: Final = (*SamplingRequest.model_fields, "chat_template_kwargs", "parallel_tool_calls")
"""Fields that a chat has, too, by the same name."""


def input_items(value: Any) -> list[dict[str, Any]]:
    """A text as what the user says; else items, which are objects."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": clean_text(value, "it")}]
    if not isinstance(value, list) or len(value) > MAX_ITEMS or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"must be a string or a list of at most {MAX_ITEMS} items, which are objects")
    return value


Items = Annotated[list[dict[str, Any]], BeforeValidator(input_items, json_schema_input_type=str | list[dict[str, Any]])]


class TextConfig(Body):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningConfig(Body):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None

    @property
    def is_summary(self) -> bool:
        return self.summary is not None or self.generate_summary is not None


class ResponsesRequest(SamplingRequest):
    model: str | None = None
    input: Items = Field(default_factory=list)
    instructions: Clean = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: TokenLimit = None
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    store: bool | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    max_tool_calls: Whole | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    @property
    def is_kept(self) -> bool:
        return self.store is not False


def refuse_unsupported(body: ResponsesRequest) -> None:
    """Raise `RequestError` for what OpenAI has and this server lacks: ignoring it would mislead."""
    if body.background:
        raise unsupported("background", "an answer lasts as long as its request; leave it out, and use stream")
    if body.conversation is not None:
        raise unsupported(
            "conversation", "there are no conversations here; use previous_response_id, or send all items"
        )
    if body.prompt is not None:
        raise unsupported("prompt", "no prompts are kept here; send instructions and input")
    if not body.input and body.previous_response_id is None:
        raise RequestError("input: this field is required", param="input", code="missing_required_parameter")

"""The bodies that clients send, checked field by field. Fields that are not listed are ignored, as OpenAI does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ferrule.errors import RequestError

MAX_CHOICES = 128
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1024
MAX_TOP_LOGPROBS = 20

ROLES: Final[Mapping[str, str]] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles that are understood, and what chat templates call them."""


def clean_text(value: Any, what: str) -> str:
    """``value`` if it is text that can be encoded; JSON can also spell halves of characters, which cannot."""
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is not valid Unicode: half a surrogate pair at character {error.start}") from error
    return value


def stop_strings(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise ValueError(f"must be a string or a list of at most {MAX_STOPS} strings")
    for stop in stops:
        if not 0 < len(clean_text(stop, "a stop string")) <= MAX_STOP_CHARACTERS:
            raise ValueError(f"a stop string must have 1 to {MAX_STOP_CHARACTERS} characters")
    return stops


def message_text(value: Any) -> str:
    """The text of a message's content: a string, or a list of text parts, which become paragraphs."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return clean_text(value, "content")
    texts = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError('each part must be an object such as {"type": "text", "text": "..."}')
        if part["type"] != "text":
            raise ValueError(f"parts of type {part['type']!r} are not supported: this server takes text only")
        texts.append(clean_text(part.get("text"), "the text of a part"))
    return "\n".join(texts)


def message_role(value: Any) -> str:
    if value in ("tool", "function"):
        raise ValueError(f"messages of role {value!r} are not supported: this server has no tool calls yet")
    if not isinstance(value, str) or value not in ROLES:
        raise ValueError(f"must be one of {', '.join(ROLES)}")
    return ROLES[value]


def prompt_list(value: Any) -> list[str | list[int]]:
    """Every form that ``prompt`` may have as a list of prompts, each a text or its token ids."""
    if isinstance(value, str):
        return [clean_text(value, "prompt")]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a string, a list of strings, token ids, or a list of lists of token ids")
    if _are_tokens(value):
        return [value]
    if all(isinstance(item, str) for item in value):
        return [clean_text(item, "each prompt") for item in value]
    if all(isinstance(item, list) and item and _are_tokens(item) for item in value):
        return list(value)
    raise ValueError("must be a string, a list of strings, token ids, or a list of lists of token ids, and not empty")


def _are_tokens(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)


Stops = Annotated[list[str], BeforeValidator(stop_strings, json_schema_input_type=str | list[str] | None)]
Content = Annotated[str, BeforeValidator(message_text, json_schema_input_type=str | list[dict[str, Any]] | None)]
Role = Annotated[str, BeforeValidator(message_role, json_schema_input_type=str)]
Prompt = Annotated[
    list[str | list[int]],
    BeforeValidator(prompt_list, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]


class Body(BaseModel):
    """No value is bent to fit: ``"1"`` is not a number and NaN is not one either."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool = False


class GenerationRequest(Body):
    """Fields that both endpoints understand. None means that the model's own default holds."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stop: Stops = []
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class Message(Body):
    role: Role
    content: Content = ""
    tool_calls: Any = None
    function_call: Any = None


class ChatRequest(GenerationRequest):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None


class CompletionRequest(GenerationRequest):
    """The body of ``POST /v1/completions``. ``max_tokens`` is 16 when it is left out, as with OpenAI."""

    prompt: Prompt
    max_tokens: int | None = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


def refuse_unsupported(body: ChatRequest | CompletionRequest) -> None:
    """Raise `RequestError` for features that clients know but this server lacks: ignoring them would mislead."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options: only allowed together with stream", param="stream_options")
    if isinstance(body, ChatRequest):
        _refuse_in_chat(body)
    else:
        _refuse_in_completion(body)


def _refuse_in_chat(body: ChatRequest) -> None:
    for field, value in (("tools", body.tools), ("functions", body.functions)):
        if value:
            raise _unsupported(field, "tool calls are not available")
    if body.tool_choice not in (None, "none", "auto"):
        raise _unsupported("tool_choice", "tool calls are not available")
    if body.audio is not None or body.modalities not in (None, [], ["text"]):
        raise _unsupported("audio" if body.audio is not None else "modalities", "this server answers in text only")
    if body.web_search_options is not None:
        raise _unsupported("web_search_options", "this server does not search the web")
    for place, message in enumerate(body.messages):
        if message.tool_calls or message.function_call:
            raise _unsupported(f"messages.{place}.tool_calls", "tool calls are not available")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs: only allowed when logprobs is true", param="top_logprobs")


def _refuse_in_completion(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of != 1:
        raise _unsupported("best_of", "ask for several answers with n and choose among them")
    if body.suffix:
        raise _unsupported("suffix", "text can only be continued, not filled in")
    if body.echo and body.logprobs is not None:
        raise _unsupported("echo", "the prompt's log-probabilities are not available; leave out echo or logprobs")


def _unsupported(field: str, why: str) -> RequestError:
    return RequestError(f"{field}: not supported: {why}", param=field, code="unsupported")

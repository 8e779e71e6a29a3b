"""The bodies that clients send, checked field by field. Fields that are not listed are ignored, as OpenAI does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from ferrule.engine.turn import MOST_PRIORITY
from ferrule.errors import RequestError
from ferrule.serve.answer.turns import TurnAsked
from ferrule.serve.tools.messages import Body, Message, PlainText, clean_text

MAX_CHOICES = 128
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
MAX_TOP_LOGPROBS = 20
MAX_INPUTS = 2048
MOST_QUEUE_SECONDS = 86400


def stop_strings(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise ValueError(f"must be a string or a list of at most {MAX_STOPS} strings")
    for stop in stops:
        if not 0 < len(clean_text(stop, "a stop string")) <= MAX_STOP_CHARACTERS:
            raise ValueError(f"a stop string must have 1 to {MAX_STOP_CHARACTERS} characters")
    return stops


def whole_number(value: Any) -> Any:
    """``value``; 8.0, as JSON of some languages has it, as 8."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def token_limit(value: Any) -> Any:
    """``max_tokens`` with -1, by which some clients mean as many as there is room for, as None."""
    value = whole_number(value)
    return None if type(value) is int and value == -1 else value


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


Whole = Annotated[int, BeforeValidator(whole_number)]
TokenLimit = Annotated[
    Annotated[int, Field(ge=0)] | None,
    BeforeValidator(token_limit, json_schema_input_type=Annotated[int, Field(ge=-1)] | None),
]
Stops = Annotated[list[str], BeforeValidator(stop_strings, json_schema_input_type=str | list[str] | None)]
_Prompts = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[str] | list[int] | list[Annotated[list[int], Field(min_length=1)]], Field(min_length=1)]
)
Prompt = Annotated[
    list[str | list[int]],
    BeforeValidator(prompt_list, json_schema_input_type=_Prompts),
]


class StreamOptions(Body):
    include_usage: bool = False


class SamplingRequest(Body):
    """Fields of sampling and of turns, the same in chats, completions and responses. None: the model's own default
    holds."""

    stop: Stops = Field(default_factory=list)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: Whole | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: Whole | None = Field(None, ge=-(2**63), lt=2**63)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[str, float] | None = None
    priority: Whole | None = Field(None, ge=-MOST_PRIORITY, le=MOST_PRIORITY)
    service_tier: Any = None
    queue_timeout: float | None = Field(None, gt=0, le=MOST_QUEUE_SECONDS)

    @property
    def turn(self) -> TurnAsked:
        tier = self.service_tier if isinstance(self.service_tier, str) else None
        return TurnAsked(self.priority, tier, self.queue_timeout)


class GenerationRequest(SamplingRequest):
    """Fields that both of the older endpoints understand."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Whole | None = Field(None, ge=1, le=MAX_CHOICES)
    stop_token_ids: list[Whole] | None = None
    max_tokens: TokenLimit = None
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


class OfferedFunction(Body):
    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1)
    parameters: dict[str, Any] | None = None

    @property
    def is_strict(self) -> bool:
        """Whether calls must follow ``parameters``. The field is no other than those that only templates read."""
        return (self.model_extra or {}).get("strict") is True


class OfferedTool(Body):
    """A tool as OpenAI describes it, by the JSON schema of its parameters."""

    type: Literal["function"]
    function: OfferedFunction


class Prediction(Body):
    """Text that the answer will have for a good part, such as a file that is edited."""

    type: Literal["content"]
    content: PlainText


class ChatRequest(GenerationRequest):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: TokenLimit = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: list[OfferedTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning_budget: Whole | None = Field(None, ge=-1)
    thinking_budget: Whole | None = Field(None, ge=-1)
    thinking_token_budget: Whole | None = Field(None, ge=-1)
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    prediction: Prediction | None = None

    @property
    def thinking_limit(self) -> int | None:
        """Most tokens of reasoning, by any name that servers have for it; -1 is none."""
        given = (self.reasoning_budget, self.thinking_budget, self.thinking_token_budget)
        limit = next((each for each in given if each is not None), None)
        return None if limit == -1 else limit


class CompletionRequest(GenerationRequest):
    """The body of ``POST /v1/completions``. ``max_tokens`` is 16 when it is left out, as with OpenAI."""

    prompt: Prompt
    max_tokens: TokenLimit = 16
    logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    best_of: Whole | None = None
    suffix: Annotated[str, AfterValidator(lambda text: clean_text(text, "suffix"))] | None = None


class EmbeddingRequest(Body):
    """The body of ``POST /v1/embeddings``."""

    input: Annotated[
        list[str | list[int]],
        BeforeValidator(prompt_list, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
        Field(max_length=MAX_INPUTS),
    ]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Whole | None = Field(None, ge=1)


def refuse_unsupported(body: ChatRequest | CompletionRequest) -> None:
    """Raise `RequestError` for features that clients know but this server lacks: ignoring them would mislead."""
    if isinstance(body, ChatRequest):
        _refuse_in_chat(body)
    else:
        _refuse_in_completion(body)


def _refuse_in_chat(body: ChatRequest) -> None:
    for field, value in (("functions", body.functions), ("function_call", body.function_call)):
        if value:
            raise unsupported(field, "OpenAI has replaced it; use tools and tool_choice")
    if body.audio is not None or body.modalities not in (None, [], ["text"]):
        raise unsupported("audio" if body.audio is not None else "modalities", "this server answers in text only")
    if body.web_search_options is not None:
        raise unsupported("web_search_options", "this server does not search the web")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs: only allowed when logprobs is true", param="top_logprobs")


def _refuse_in_completion(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of != 1:
        raise unsupported("best_of", "ask for several answers with n and choose among them")
    if body.suffix and body.echo and body.logprobs is not None:
        raise unsupported("echo", "together with suffix there is no prompt that the answer continues")


def unsupported(field: str, why: str) -> RequestError:
    return RequestError(f"{field}: not supported: {why}", param=field, code="unsupported")

"""The bodies that Ollama's clients send, checked field by field. Fields and options that are not listed are ignored, as
Ollama does. Source of the fields: https://docs.ollama.com/openapi.yaml."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ferrule.errors import RequestError
from ferrule.serve.openai.schemas import MAX_TOP_LOGPROBS, OfferedFunction, Stops, Whole
from ferrule.serve.tools.messages import Body, Clean, Message, clean_text

DURATION = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|ms|s|m|h))+|[+-]?0")
"""A duration as Go writes it: ``5m``, ``1h30m``."""


PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def keep_alive(value: Any) -> Any:
    """Seconds as a number, or a duration as text, which becomes seconds. Less than 0: for ever."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if not isinstance(value, str) or not DURATION.fullmatch(value.strip()):
        raise ValueError("must be seconds, or a duration such as '5m' or '1h30m'; negative for ever, 0 to unload")
    seconds = sum(float(number) * UNITS[unit] for number, unit in PART.findall(value))
    return -seconds if value.strip().startswith("-") else seconds


def images(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("must be a list of images in base64")
    return value


def answer_format(value: Any) -> Any:
    if value in (None, "", "json") or isinstance(value, dict):
        return value or None
    raise ValueError("must be 'json' or a JSON schema, which is an object")


def thinking(value: Any) -> Any:
    if value is None or isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(r"[a-z]{1,16}", value)):
        return value
    raise ValueError("must be true, false, or a level such as 'low', 'medium' or 'high'")


def text(value: Any) -> str:
    return "" if value is None else clean_text(value, "it")


def texts(value: Any) -> list[str]:
    """One text or several as a list."""
    if not isinstance(value, str | list):
        raise ValueError("must be a text or a list of texts")
    return [clean_text(each, "each text") for each in ([value] if isinstance(value, str) else value)]


KeepAlive = Annotated[float | None, BeforeValidator(keep_alive, json_schema_input_type=float | str | None)]
Images = Annotated[list[str], BeforeValidator(images, json_schema_input_type=list[str] | None)]
AnswerFormat = Annotated[Any, BeforeValidator(answer_format, json_schema_input_type=str | dict[str, Any] | None)]
Think = Annotated[bool | str | None, BeforeValidator(thinking)]
Text = Annotated[str, BeforeValidator(text, json_schema_input_type=str | None)]

Texts = Annotated[list[str], BeforeValidator(texts, json_schema_input_type=str | list[str])]


class Options(Body):
    """Options of generation. Those of loading a model, such as ``num_ctx``, and those that Ollama has given up, such as
    ``mirostat``, change nothing. None: the model's own default."""

    temperature: float | None = Field(None, ge=0)
    top_k: Whole | None = None
    top_p: float | None = Field(None, ge=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: Whole | None = Field(None, ge=-(2**63), lt=2**63)
    num_predict: Whole | None = None
    stop: Stops = Field(default_factory=list)
    repeat_penalty: float | None = Field(None, ge=0)
    repeat_last_n: Whole | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class ModelRequest(Body):
    model: str = Field(min_length=1)


class NamedRequest(Body):
    """``name`` is what older clients call ``model``."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None

    @property
    def wanted(self) -> str:
        """Raises `RequestError` where none is."""
        named = self.model or self.name
        if not named:
            raise RequestError("model: this field is required", param="model", code="missing_required_parameter")
        return named


class GenerationRequest(ModelRequest):
    """Fields of both endpoints of text."""

    stream: bool | None = None
    format: AnswerFormat = None
    options: Options | None = None
    keep_alive: KeepAlive = None
    think: Think = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    @property
    def streamed(self) -> bool:
        return self.stream is not False


class GenerateRequest(GenerationRequest):
    """The body of ``POST /api/generate``."""

    prompt: Text = ""
    suffix: Text = ""
    system: Text = ""
    template: Text = ""
    context: list[Whole] | None = None
    raw: bool | None = None
    images: Images = Field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be answered."""
        return not (self.prompt or self.suffix or self.images or self.template)


class ChatMessage(Message):
    """A message. ``tool_name``: of the tool whose result it is."""

    thinking: Clean = None
    images: Images = Field(default_factory=list)
    tool_name: Clean = None


class OfferedTool(Body):
    type: Literal["function"] | None = None
    function: OfferedFunction


class ChatRequest(GenerationRequest):
    """The body of ``POST /api/chat``."""

    messages: list[ChatMessage] | None = None
    tools: list[OfferedTool] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be answered."""
        return not self.messages


class EmbedRequest(ModelRequest):
    """The body of ``POST /api/embed``. ``truncate``: whether a text that is too long is cut; it is where left out."""

    input: Texts
    truncate: bool | None = None
    dimensions: Whole | None = Field(None, ge=1)
    keep_alive: KeepAlive = None


class EmbeddingsRequest(ModelRequest):
    """The body of ``POST /api/embeddings``, which ``/api/embed`` has replaced."""

    prompt: Text = ""
    keep_alive: KeepAlive = None

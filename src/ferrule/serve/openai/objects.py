"""OpenAI's objects as this server writes them: answers and the events of a stream, models and health."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType, structs

from ferrule.engine import HandOverUse, PrefixUse, Recovery, ReplicaHealth, SpeculationUse, StreamUse
from ferrule.serve.answer.form import Counts


class CompletionDetails(msgspec.Struct):
    """The last two: of speculation, where it guessed any. Guesses that were wrong are in no total."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class PromptDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


def usage(counts: Counts) -> Usage:
    total = counts.prompt + counts.completion
    return Usage(counts.prompt, counts.completion, total, PromptDetails(counts.cached))


def chat_usage(counts: Counts) -> Usage:
    """With what was reasoning; completions are not read for it."""
    details = CompletionDetails(counts.reasoning)
    if counts.guessed or counts.wrong:
        details = CompletionDetails(counts.reasoning, counts.guessed, counts.wrong)
    return structs.replace(usage(counts), completion_tokens_details=details)


class ChatToken(msgspec.Struct):
    """``bytes``: None for a part of a character, whose bytes are not known here."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[ChatToken] | UnsetType = UNSET


class ChatLogprobs(msgspec.Struct):
    content: list[ChatToken]
    refusal: None = None


class CalledFunction(msgspec.Struct):
    """``arguments``: a JSON object as text, in a delta a piece of it."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct):
    """``index``: in a delta, which call it belongs to; its first delta has the name."""

    function: CalledFunction
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Delta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """``message`` of a whole answer, ``delta`` of an event."""

    index: int
    message: ChatMessage | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class TextLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def __add__(self, more: TextLogprobs) -> TextLogprobs:
        """These and then ``more``."""
        return TextLogprobs(
            self.tokens + more.tokens,
            self.token_logprobs + more.token_logprobs,
            self.top_logprobs + more.top_logprobs,
            self.text_offset + more.text_offset,
        )


class TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class AnswerBody(msgspec.Struct):
    """A whole answer or an event. ``usage``: None in the events before the one that has it, where it was asked for."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: Sequence[ChatChoice | TextChoice]
    usage: Usage | UnsetType | None = UNSET


class Vector(msgspec.Struct):
    """``embedding``: numbers, or these as little-endian float32 in base64."""

    index: int
    embedding: list[float] | bytes
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class VectorList(msgspec.Struct):
    data: list[Vector]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


class ChatBody(AnswerBody):
    """`AnswerBody` of a chat, for the description of the API."""

    choices: Sequence[ChatChoice]


class TextBody(AnswerBody):
    """`AnswerBody` of a completion, for the description of the API."""

    choices: Sequence[TextChoice]


class ModelCard(msgspec.Struct):
    """``max_model_len``, ``context_length``, ``context_window``: the same number of tokens, as clients of vLLM, of
    routers and of others look for it. ``capabilities``: words of Ollama's, and some more.
    ``root`` and ``parent``: of one with an adapter, the model that it changes. ``state``: as at ``/health``, or
    ``unloaded``. ``replicas``: whole copies, where there are to be several, as at ``/health``."""

    id: str
    created: int
    max_model_len: int
    context_length: int
    context_window: int
    capabilities: list[str]
    object: str = "model"
    owned_by: str = "ferrule"
    root: str | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    replicas: tuple[ReplicaHealth, ...] | UnsetType = UNSET


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


class ModelHealth(msgspec.Struct, omit_defaults=True):
    """One of several models. ``status``: ``unloaded``, or as of an only one; ``memory``: bytes that it needs when it is
    loaded."""

    status: str
    memory: int
    running: int = 0
    waiting: int = 0
    pinned: bool = False
    error: str | None = None
    note: str | None = None
    prefix_cache: PrefixUse | None = None
    speculation: SpeculationUse | None = None
    streamed_weights: StreamUse | None = None


class ManyHealthBody(msgspec.Struct):
    """``models``: those that the caller may use; ``model``: of these that of requests which name none."""

    status: str
    models: dict[str, ModelHealth]
    model: str | UnsetType = UNSET


class HealthBody(msgspec.Struct, omit_defaults=True):
    """``since``: when this state began, in seconds since 1970. ``note``, ``replicas``, ``prefix_cache``,
    ``speculation``, ``streamed_weights``, ``hand_over``: as in `ferrule.engine.Health`. ``context_parallel``: as in
    `Plan.context`, where it is more than one rank."""

    status: str
    model: str
    running: int
    waiting: int
    since: float
    recoveries: int
    last_recovery: Recovery | None = None
    error: str | None = None
    note: str | None = None
    prefix_cache: PrefixUse | None = None
    speculation: SpeculationUse | None = None
    streamed_weights: StreamUse | None = None
    replicas: tuple[ReplicaHealth, ...] = ()
    hand_over: HandOverUse | None = None
    context_parallel: int = 1

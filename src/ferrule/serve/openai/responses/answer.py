"""``POST /v1/responses``: from items to a chat, which is read as all chats are, and the response that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from ferrule.engine import SamplingParams
from ferrule.errors import RequestError
from ferrule.serve.answer.sending import Answer
from ferrule.serve.answer.service import Service
from ferrule.serve.http.errors import validation_error
from ferrule.serve.openai.chat import PreparedChat, prepare_chat
from ferrule.serve.openai.identity import new_identity
from ferrule.serve.openai.responses.form import FormOptions, ResponseForm
from ferrule.serve.openai.responses.items import Item, messages_of, read_items
from ferrule.serve.openai.responses.objects import ResponseBody
from ferrule.serve.openai.responses.schemas import (
    PASSED,
    ReasoningConfig,
    ResponsesRequest,
    TextConfig,
    refuse_unsupported,
)
from ferrule.serve.openai.responses.store import Kept, Responses, Segment
from ferrule.serve.openai.responses.tools import Offered, offered
from ferrule.serve.openai.schemas import ChatRequest

ANSWER_SHARE: Final = 8
"""With ``truncation: auto`` and no ``max_output_tokens``, one token in so many of the context is for the answer."""
OWN_WORDS: Final = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "max_completion_tokens": "max_output_tokens",
}
"""Fields of a chat, and what a response calls them."""


@dataclass(frozen=True)
class Context:
    """What a request builds upon. ``before``: items of the responses before it, by ``previous_response_id``."""

    owner: str
    responses: Responses
    before: tuple[Segment, ...] = ()


def context_of(body: ResponsesRequest, owner: str, responses: Responses) -> Context:
    """Raises `ApiError` 404 where the previous response is not there."""
    if body.previous_response_id is None:
        return Context(owner, responses)
    previous = responses.get(body.previous_response_id, owner, param="previous_response_id")
    return Context(owner, responses, previous.history)


@dataclass(frozen=True)
class Read:
    """A request, read: the tools that it offers, and the sequence to generate."""

    offered: Offered
    chat: PreparedChat


def read_request(service: Service, body: ResponsesRequest, context: Context, own: Sequence[Item]) -> Read:
    """Takes long where the conversation is long. Raises `RequestError` for what cannot be done."""
    tools = offered(body.tools, body.tool_choice)
    items = [*(item for each in context.before for item in each.items), *own]
    return Read(tools, _prepare(service, body, items, tools))


def own_items(body: ResponsesRequest, context: Context) -> list[Item]:
    """Items of the request itself, checked."""
    refuse_unsupported(body)
    return read_items(body.input, lambda name: context.responses.item(name, context.owner))


def answer_response(service: Service, body: ResponsesRequest, context: Context, own: Sequence[Item]) -> Answer:
    """The answer to ``body``, kept when it is complete."""
    read = read_request(service, body, context, own)
    params = read.chat.jobs[0].params

    def keep(response: ResponseBody) -> None:
        if body.is_kept:
            context.responses.keep(Kept.new(context.owner, response, context.before, own))

    summary = body.reasoning is not None and body.reasoning.is_summary
    begun = _begun(service, body, read.offered, params)
    _check_echo(begun)
    form = ResponseForm(FormOptions(begun, read.offered, summary, body.wants_logprobs, keep))
    return Answer(service, read.chat.jobs, form, prompt_tokens=read.chat.prompt_tokens, stream=bool(body.stream))


def _prepare(service: Service, body: ResponsesRequest, items: Sequence[Item], tools: Offered) -> PreparedChat:
    def chat_of(some: Sequence[Item]) -> PreparedChat:
        try:
            chat = ChatRequest.model_validate(_chat(body, some, tools))
            return prepare_chat(service, chat, pieces=bool(body.stream), texts=tools.texts)
        except ValidationError as error:
            raise validation_error(error.errors()) from None
        except RequestError as error:
            raise _in_own_words(error) from None

    if body.truncation != "auto":
        return chat_of(items)
    most = service.engine.max_context
    room = most // ANSWER_SHARE if body.max_output_tokens is None else body.max_output_tokens
    return truncated(chat_of, items, most=max(most - max(room, 1), 1))


def truncated(chat_of: Callable[[Sequence[Item]], PreparedChat], items: Sequence[Item], *, most: int) -> PreparedChat:
    """The chat of ``items`` without as many of the first ones as keep it from having at most ``most`` tokens.

    Rules stay (messages of system and developer); no result stays without its call. Raises `RequestError` where even
    what the user said last is too long.
    """
    starts = [at for at, item in enumerate(items) if item["type"] == "message" and item["role"] == "user"]
    starts = [0, *(at for at in starts if at)]

    def fits(start: int) -> PreparedChat | None:
        kept = [item for at, item in enumerate(items) if at >= start or _is_rule(item)]
        try:
            chat = chat_of(kept)
        except RequestError as error:
            if error.code == "context_length_exceeded" and start != starts[-1]:
                return None
            raise
        return chat if chat.prompt_tokens <= most or start == starts[-1] else None

    whole = fits(starts[0])
    if whole is not None:
        return whole
    low, high = 1, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(starts[middle]) is not None else (middle + 1, high)
    cut = fits(starts[high])
    assert cut is not None
    return cut


def _is_rule(item: Item) -> bool:
    return item["type"] == "message" and item["role"] in ("system", "developer")


def _chat(body: ResponsesRequest, items: Sequence[Item], tools: Offered) -> dict[str, Any]:
    """The request as a chat has it."""
    chat = {name: value for name in PASSED if (value := getattr(body, name)) is not None}
    chat["messages"] = messages_of(items, body.instructions)
    if body.max_output_tokens is not None:
        chat["max_completion_tokens"] = body.max_output_tokens
    if body.reasoning is not None and body.reasoning.effort is not None:
        chat["reasoning_effort"] = body.reasoning.effort
    if body.wants_logprobs:
        chat |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if tools.shown:
        chat |= {"tools": tools.shown, "tool_choice": tools.choice}
    if body.text is not None and body.text.format is not None:
        chat["response_format"] = _response_format(body.text.format)
    return chat


def _response_format(given: dict[str, Any]) -> dict[str, Any]:
    """A chat has the schema's name and itself one level deeper."""
    if given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}


def _in_own_words(error: RequestError) -> RequestError:
    """``error`` with the name that a response has for the field at fault."""
    message, param = str(error), error.param
    for theirs, ours in OWN_WORDS.items():
        if param is not None and param.startswith(theirs):
            message = ours + message[len(theirs) :] if message.startswith(theirs) else message
            return RequestError(message, param=ours + param[len(theirs) :], code=error.code)
    return error


def _check_echo(begun: ResponseBody) -> None:
    """Raise `RequestError` where what a request gives as it likes, as with schemas, cannot be told again."""
    try:
        msgspec.json.encode(begun)
    except (ValueError, OverflowError, RecursionError) as error:
        why = f"a tool, schema or choice of the request cannot be written as JSON: {error}"
        raise RequestError(why, code="invalid_value") from None


def _begun(service: Service, body: ResponsesRequest, tools: Offered, params: SamplingParams) -> ResponseBody:
    identity = new_identity(service.engine, "resp")
    reasoning = body.reasoning or ReasoningConfig()
    text = body.text or TextConfig()
    verbosity = {} if text.verbosity is None else {"verbosity": text.verbosity}
    return ResponseBody(
        id=identity.id.replace("-", "_"),
        created_at=identity.created,
        model=identity.model,
        status="in_progress",
        output=[],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": reasoning.effort, "summary": reasoning.summary or reasoning.generate_summary},
        safety_identifier=body.safety_identifier,
        store=body.is_kept,
        temperature=params.temperature,
        text={"format": text.format or {"type": "text"}, **verbosity},
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=tools.told,
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )

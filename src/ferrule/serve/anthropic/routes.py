"""Paths of Anthropic's API. Its models are listed by OpenAI's path, for requests that name Anthropic's version."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

from fastapi import FastAPI, Request
from fastapi.responses import Response

from ferrule.errors import RequestError
from ferrule.serve.answer.prepared import prepared
from ferrule.serve.answer.prompt import encode
from ferrule.serve.answer.sending import Answer
from ferrule.serve.answer.service import Service
from ferrule.serve.anthropic.form import PATH, MessagesForm
from ferrule.serve.anthropic.objects import CountBody, MessageBody
from ferrule.serve.anthropic.schemas import CountRequest, MessagesRequest
from ferrule.serve.anthropic.translate import chat_request
from ferrule.serve.http.errors import OF_BODIES, ApiError, described
from ferrule.serve.http.respond import respond
from ferrule.serve.models import Models
from ferrule.serve.openai.chat import PreparedChat, chat_text, prepare_chat
from ferrule.serve.openai.schemas import ChatRequest
from ferrule.serve.tools.asked import asked


def add_routes(app: FastAPI, models: Models) -> None:
    @app.post(PATH, responses=described(*OF_BODIES, ok=MessageBody, stream=MessagesForm.media_type))
    async def messages(body: MessagesRequest, request: Request) -> Response:
        service = await _served(models.service, body.model)
        form = body.output_format or (body.output_config and body.output_config.format)
        slow = form is not None or bool(body.tools)  # strict or forced, they have a grammar
        return await prepared(service, request, lambda: answer_messages(service, body), slow=slow)

    @app.post(f"{PATH}/count_tokens", responses=described(*OF_BODIES, ok=CountBody))
    async def count_tokens(body: CountRequest, request: Request) -> Response:
        service = await _served(models.known, body.model)
        return await prepared(service, request, lambda: respond(CountBody(count(service, body))))


def answer_messages(service: Service, body: MessagesRequest) -> Answer:
    """The answer to ``body``. Raises `RequestError` when it asks for something that cannot be done."""
    chat = _prepared(service, chat_request(body), pieces=bool(body.stream))
    shows = body.thinking is None or body.thinking.display != "omitted"
    form = MessagesForm(f"msg_{uuid.uuid4().hex}", service.engine.name, body.max_tokens, shows)
    return Answer(service, chat.jobs, form, prompt_tokens=chat.prompt_tokens, stream=bool(body.stream))


def _prepared(service: Service, asked: ChatRequest, *, pieces: bool) -> PreparedChat:
    """A budget of reasoning is a target with Anthropic's, so a model on which none can be put reasons without."""
    try:
        return prepare_chat(service, asked, pieces=pieces)
    except RequestError as error:
        if error.param != "reasoning_budget" or error.code != "unsupported":
            raise
    return prepare_chat(service, asked.model_copy(update={"reasoning_budget": None}), pieces=pieces)


def count(service: Service, body: CountRequest) -> int:
    """Tokens of the prompt that `answer_messages` would make. Raises as it does, also where they are certainly more
    than the context holds."""
    chat = chat_request(body)
    wanted = asked(chat, service.engine.tokenizer, service.dialect)
    text = chat_text(service.engine, chat, wanted, service.dialect)
    return len(encode(service.engine, text, field="messages", add_special_tokens=False))


async def _served(find: Callable[[str | None], Awaitable[Service]], name: str | None) -> Service:
    try:
        return await find(name)
    except ApiError as error:
        if error.code != "model_not_found":
            raise
        hint = "for Claude Code set ANTHROPIC_MODEL to a name that is served here (`ferrule connect claude-code`)"
        raise replace(error, message=f"{error.message}; {hint}, or make {name!r} an alias of it") from None

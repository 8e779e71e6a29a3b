"""Paths of Anthropic's API. Its models are listed by OpenAI's path, for requests that name Anthropic's version."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

from fastapi import FastAPI, Request
from fastapi.responses import Response

from ferrule.errors import RequestError
from ferrule.serve.answer.prepared import RequestReader, prepared
from ferrule.serve.answer.sending import Answer
from ferrule.serve.answer.service import Service
from ferrule.serve.anthropic.blocks import shows_images
from ferrule.serve.anthropic.form import PATH, MessagesForm
from ferrule.serve.anthropic.objects import CountBody, MessageBody
from ferrule.serve.anthropic.schemas import CountRequest, MessagesRequest
from ferrule.serve.anthropic.translate import chat_request
from ferrule.serve.http.errors import OF_BODIES, ApiError, described
from ferrule.serve.http.respond import respond
from ferrule.serve.models import Models
from ferrule.serve.openai.chat import PreparedChat, chat_tokens, prepare_chat
from ferrule.serve.openai.schemas import ChatRequest


def add_routes(app: FastAPI, models: Models) -> None:
    @app.post(PATH, responses=described(*OF_BODIES, ok=MessageBody, stream=MessagesForm.media_type))
    async def messages(body: MessagesRequest, request: Request) -> Response:
        service = await _served(models.service, body.model)
        form = body.output_format or (body.output_config and body.output_config.format)
        budget = body.thinking is not None and body.thinking.budget_tokens is not None
        slow = form is not None or bool(body.tools) or budget  # strict or forced tools and budgets have a grammar
        return await prepared(service, request, lambda reader: answer_messages(reader, body), slow=slow)

    @app.post(f"{PATH}/count_tokens", responses=described(*OF_BODIES, ok=CountBody))
    async def count_tokens(body: CountRequest, request: Request) -> Response:
        service = await _served(models.service if shows_images(body) else models.known, body.model)
        return respond(CountBody(await prepared(service, request, lambda reader: count(reader, body))))


async def answer_messages(reader: RequestReader, body: MessagesRequest) -> Answer:
    """The answer to ``body``. Raises `RequestError` when it asks for something that cannot be done."""
    chat = await _prepared(reader, body)
    shows = body.thinking is None or body.thinking.display != "omitted"
    form = MessagesForm(f"msg_{uuid.uuid4().hex}", reader.service.engine.name, body.max_tokens, shows)
    return Answer(reader.service, chat.jobs, form, prompt_tokens=chat.prompt_tokens, stream=bool(body.stream))


async def _prepared(reader: RequestReader, body: MessagesRequest) -> PreparedChat:
    """A budget of reasoning is a target with Anthropic's, so a model on which none can be put reasons without."""
    try:
        return await prepare_chat(reader, lambda: chat_request(body), pieces=bool(body.stream))
    except RequestError as error:
        if error.param != "reasoning_budget" or error.code != "unsupported":
            raise

    def unbounded() -> ChatRequest:
        return chat_request(body).model_copy(update={"reasoning_budget": None})

    return await prepare_chat(reader, unbounded, pieces=bool(body.stream))


async def count(reader: RequestReader, body: CountRequest) -> int:
    """Tokens of the prompt that `answer_messages` would make. Raises as it does, also where they are certainly more
    than the context holds."""
    return len(await chat_tokens(reader, lambda: chat_request(body)))


async def _served(find: Callable[[str | None], Awaitable[Service]], name: str | None) -> Service:
    try:
        return await find(name)
    except ApiError as error:
        if error.code != "model_not_found":
            raise
        hint = "for Claude Code set ANTHROPIC_MODEL to a name that is served here (`ferrule connect claude-code`)"
        raise replace(error, message=f"{error.message}; {hint}, or make {name!r} an alias of it") from None

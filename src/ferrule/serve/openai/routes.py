"""Paths of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.responses import Response

from ferrule.engine import Engine
from ferrule.serve.answer.form import Form
from ferrule.serve.answer.prepared import RequestReader, prepared
from ferrule.serve.answer.sending import while_wanted
from ferrule.serve.anthropic.models import model_info, model_page
from ferrule.serve.http.errors import OF_ALL, OF_BODIES, described
from ferrule.serve.http.respond import respond
from ferrule.serve.models import Models
from ferrule.serve.openai.cards import Cards
from ferrule.serve.openai.chat import answer_chat
from ferrule.serve.openai.completions import answer_completion
from ferrule.serve.openai.embeddings import answer_embeddings
from ferrule.serve.openai.identity import new_identity
from ferrule.serve.openai.objects import ChatBody, ModelCard, ModelList, TextBody, VectorList
from ferrule.serve.openai.responses import routes as responses_routes
from ferrule.serve.openai.schemas import ChatRequest, CompletionRequest, EmbeddingRequest
from ferrule.serve.openai.tokens import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
    detokenized,
    tokenized,
)
from ferrule.serve.structured.grammars import is_structured
from ferrule.serve.tools.messages import has_images

ANTHROPIC_VERSION = "anthropic-version"
"""Header of every request of Anthropic's clients. Both APIs list models at one path, each in its own form."""


def add_routes(app: FastAPI, models: Models, *, parser_of: Callable[[Engine], str]) -> None:
    """``parser_of``: format of a model's tool calls, by which its card tells whether it takes tools."""
    cards = Cards(parser_of)
    responses_routes.add_routes(app, models)

    @app.post("/v1/chat/completions", responses=described(*OF_BODIES, ok=ChatBody, stream=Form.media_type))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        service = await models.service(body.model)
        identity = new_identity(service.engine, "chatcmpl")
        return await prepared(
            service, request, lambda reader: answer_chat(reader, body, identity), slow=is_structured(body)
        )

    @app.post("/v1/completions", responses=described(*OF_BODIES, ok=TextBody, stream=Form.media_type))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service = await models.service(body.model)
        identity = new_identity(service.engine, "cmpl")

        async def answer(reader: RequestReader) -> Response:
            return await reader.run(lambda: answer_completion(service, body, identity))

        return await prepared(service, request, answer, slow=is_structured(body))

    @app.post("/v1/embeddings", response_class=Response, responses=described(*OF_BODIES, ok=VectorList))
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        service = await models.service(body.model)
        return respond(await while_wanted(request.receive, service.closing, answer_embeddings(service, body)))

    @app.get("/v1/models", responses=described(*OF_ALL, ok=ModelList))
    async def list_models(request: Request) -> Response:
        if ANTHROPIC_VERSION in request.headers:
            return respond(model_page(models.cards()))
        return respond(ModelList([await cards.of(engine) for engine in models.cards()]))

    @app.get("/v1/models/{name:path}", responses=described(404, *OF_ALL, ok=ModelCard))
    async def model(name: str, request: Request) -> Response:
        engine = (await models.known(name)).engine
        return respond(model_info(engine) if ANTHROPIC_VERSION in request.headers else await cards.of(engine))

    @app.post("/tokenize", responses=described(*OF_BODIES, ok=Tokenized))
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        service = await (models.service if has_images(body.messages or ()) else models.known)(body.model)
        return respond(await prepared(service, request, lambda reader: tokenized(reader, body)))

    @app.post("/detokenize", responses=described(*OF_BODIES, ok=Detokenized))
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        service = await models.known(body.model)

        async def text(reader: RequestReader) -> Detokenized:
            return await reader.run(lambda: detokenized(service, body))

        return respond(await prepared(service, request, text))

"""Paths of OpenAI's API."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response

from ferrule.engine import Engine
from ferrule.serve.answer.prepared import prepared
from ferrule.serve.answer.sending import while_wanted
from ferrule.serve.http.errors import OF_ALL, OF_BODIES, described
from ferrule.serve.http.respond import respond
from ferrule.serve.models import Models
from ferrule.serve.openai.chat import answer_chat
from ferrule.serve.openai.completions import answer_completion
from ferrule.serve.openai.embeddings import answer_embeddings
from ferrule.serve.openai.identity import new_identity
from ferrule.serve.openai.objects import ModelCard, ModelList
from ferrule.serve.openai.schemas import ChatRequest, CompletionRequest, EmbeddingRequest
from ferrule.serve.structured.grammars import is_structured


def add_routes(app: FastAPI, models: Models) -> None:
    @app.post("/v1/chat/completions", response_class=Response, responses=described(*OF_BODIES))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        service = await models.service(body.model)
        identity = new_identity(service.engine, "chatcmpl")
        return await prepared(service, request, lambda: answer_chat(service, body, identity), slow=is_structured(body))

    @app.post("/v1/completions", response_class=Response, responses=described(*OF_BODIES))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service = await models.service(body.model)
        identity = new_identity(service.engine, "cmpl")
        return await prepared(
            service, request, lambda: answer_completion(service, body, identity), slow=is_structured(body)
        )

    @app.post("/v1/embeddings", response_class=Response, responses=described(*OF_BODIES))
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        service = await models.service(body.model)
        return respond(await while_wanted(request.receive, service.closing, answer_embeddings(service, body)))

    @app.get("/v1/models", responses=described(*OF_ALL))
    async def list_models() -> Response:
        return respond(ModelList([model_card(engine) for engine in models.cards()]))

    @app.get("/v1/models/{name:path}", responses=described(404, *OF_ALL))
    async def model(name: str) -> Response:
        return respond(model_card((await models.service(name)).engine))


def model_card(engine: Engine) -> ModelCard:
    return ModelCard(engine.name, engine.created, engine.max_context)

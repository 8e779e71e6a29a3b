"""Paths of Ollama's API."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response

from ferrule.serve.answer.prepared import RequestReader, prepared
from ferrule.serve.http.errors import OF_ALL, OF_BODIES, ApiError, described
from ferrule.serve.http.respond import respond
from ferrule.serve.keys.allowed import refuse_limited
from ferrule.serve.models import Models
from ferrule.serve.ollama.chat import answer_chat, answer_generate, loaded
from ferrule.serve.ollama.describe import VERSION, can_be_had, in_memory, shown
from ferrule.serve.ollama.embed import answer_embed, answer_embeddings
from ferrule.serve.ollama.form import NDJSON, Watch
from ferrule.serve.ollama.names import keep, known, loaded_of, service_of
from ferrule.serve.ollama.objects import (
    ChatLine,
    Embedded,
    Embedding,
    GenerateLine,
    ModelList,
    Progress,
    Shown,
    Version,
)
from ferrule.serve.ollama.pull import Pulls, delete
from ferrule.serve.ollama.schemas import (
    ChatRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    NamedRequest,
)

Asked = TypeVar("Asked", ChatRequest, GenerateRequest)
REFUSED = {
    "copy": "name a model with ferrule serve --name NAME",
    "create": "serve a directory or a GGUF file with ferrule serve MODEL",
    "push": "upload to the hub with its own tools",
}


def add_routes(app: FastAPI, models: Models) -> None:
    pulls = Pulls()

    async def text(
        body: Asked, request: Request, answer: Callable[[RequestReader, Asked, Watch], Awaitable[Response]]
    ) -> Response:
        watch = Watch()
        if body.is_empty and body.keep_alive == 0:
            service = await known(models, body.model)  # not loaded only to be unloaded
            keep(service, 0)
            return loaded(service, body)
        service = await service_of(models, body.model)
        keep(service, body.keep_alive)
        watch.loaded_now()
        if body.is_empty:
            return loaded(service, body)
        slow = body.format is not None
        return await prepared(service, request, lambda reader: answer(reader, body, watch), slow=slow)

    @app.post("/api/chat", responses=described(*OF_BODIES, ok=ChatLine, stream=NDJSON))
    async def chat(body: ChatRequest, request: Request) -> Response:
        return await text(body, request, answer_chat)

    @app.post("/api/generate", responses=described(*OF_BODIES, ok=GenerateLine, stream=NDJSON))
    async def generate(body: GenerateRequest, request: Request) -> Response:
        return await text(body, request, answer_generate)

    @app.post("/api/embed", responses=described(*OF_BODIES, ok=Embedded))
    async def embed(body: EmbedRequest) -> Response:
        begun = time.monotonic_ns()
        service = await service_of(models, body.model)
        keep(service, body.keep_alive)
        return await answer_embed(service, body, begun)

    @app.post("/api/embeddings", responses=described(*OF_BODIES, ok=Embedding))
    async def embeddings(body: EmbeddingsRequest) -> Response:
        service = await service_of(models, body.model)
        keep(service, body.keep_alive)
        return await answer_embeddings(service, body)

    @app.head("/api/tags", include_in_schema=False)
    @app.get("/api/tags", responses=described(*OF_ALL, ok=ModelList))
    async def tags() -> Response:
        return respond(ModelList([can_be_had(engine) for engine in models.cards()]))

    @app.get("/api/ps", responses=described(*OF_ALL, ok=ModelList))
    async def ps() -> Response:
        return respond(ModelList([in_memory(each) for each in await loaded_of(models)]))

    @app.post("/api/show", responses=described(*OF_BODIES, ok=Shown))
    async def show(body: NamedRequest) -> Response:
        return respond(shown(await known(models, body.wanted)))

    @app.post("/api/pull", responses=described(*OF_BODIES, ok=Progress, stream=NDJSON))
    async def pull(body: NamedRequest) -> Response:
        refuse_limited("fetch or delete them")
        return pulls.answer(body.wanted, stream=body.stream is not False)

    @app.delete("/api/delete", response_class=Response, responses=described(*OF_BODIES))
    async def remove(body: NamedRequest) -> Response:
        refuse_limited("fetch or delete them")
        return await delete(models, body.wanted)

    @app.head("/api/version", include_in_schema=False)
    @app.get("/api/version", responses=described(*OF_ALL, ok=Version))
    async def version() -> Response:
        return respond(Version(VERSION))

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return PlainTextResponse("Ollama is running")  # what clients look for, to the letter

    for name, instead in REFUSED.items():
        app.post(f"/api/{name}", include_in_schema=False)(_refusing(name, instead))


def _refusing(name: str, instead: str) -> Callable[[], Any]:
    async def refuse() -> Response:
        raise ApiError(400, f"/api/{name} is not supported: {instead}", code="unsupported")

    return refuse

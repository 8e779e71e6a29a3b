"""The HTTP application: which path does what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response

from ferrule import __version__
from ferrule.engine import Engine
from ferrule.errors import ConfigError
from ferrule.serve.answer import MAX_SEQUENCES, Service, shutting_down, while_wanted
from ferrule.serve.auth import Guard
from ferrule.serve.chat import answer_chat
from ferrule.serve.completions import answer_completion
from ferrule.serve.errors import OF_ALL, OF_BODIES, ApiError, described, install
from ferrule.serve.identity import new_identity, system_fingerprint
from ferrule.serve.objects import HealthBody, ModelCard, ModelList, respond
from ferrule.serve.prompt import body_limit
from ferrule.serve.schemas import ChatRequest, CompletionRequest, GenerationRequest
from ferrule.serve.structured.grammars import is_structured
from ferrule.serve.tools.families import AUTO, dialect

SMALL_BODY = 1 << 12
"""Bytes of a request up to which it is tokenized at once, which takes milliseconds; beyond, and with a grammar to
compile, beside the event loop."""


HEALTH_RESPONSES = {**described(403, 408), 503: {"description": "the model does not run; `status` says why"}}


def create_app(
    engine: Engine,
    *,
    api_key: str | None,
    origins: Sequence[str] = (),
    max_sequences: int = MAX_SEQUENCES,
    tool_parser: str = AUTO,
) -> FastAPI:
    """The application that serves ``engine``. The engine remains the caller's to close.

    ``api_key``: what clients must send as bearer token; with None only requests to loopback names are answered.
    ``origins``: of web pages that may send requests from browsers (CORS), such as ``https://chat.example``.
    ``tool_parser``: format of the model's tool calls, as `dialect` takes it.
    ``max_sequences``: how many sequences may be running or waiting before clients get status 429.
    ``app.state.service.close()`` ends every answer. Raises `ConfigError` for an empty key.
    """
    if api_key is not None and not api_key.strip():
        raise ConfigError("the API key is empty; give one with --api-key or FERRULE_API_KEY, or none at all")
    service = Service(engine, dialect(engine.tokenizer.chat_template, tool_parser), max_sequences=max_sequences)
    fingerprint = system_fingerprint(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # The documentation pages would load scripts from elsewhere; the description of the API itself stays.
    app = FastAPI(title="Ferrule", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(Guard, api_key=api_key, body_limit=body_limit(engine.max_context))
    if origins:  # outside of the guard: a browser asks first without the key, and reads refusals, too
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    install(app)

    @app.post("/v1/chat/completions", response_class=Response, responses=described(*OF_BODIES))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        check_model(engine, body.model)
        identity = new_identity(engine, "chatcmpl", fingerprint)
        return await prepared(service, request, body, lambda: answer_chat(service, body, identity))

    @app.post("/v1/completions", response_class=Response, responses=described(*OF_BODIES))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        check_model(engine, body.model)
        identity = new_identity(engine, "cmpl", fingerprint)
        return await prepared(service, request, body, lambda: answer_completion(service, body, identity))

    @app.get("/v1/models", responses=described(*OF_ALL))
    async def models() -> Response:
        return respond(ModelList([model_card(engine)]))

    @app.get("/v1/models/{name:path}", responses=described(404, *OF_ALL))
    async def model(name: str) -> Response:
        check_model(engine, name)
        return respond(model_card(engine))

    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses=HEALTH_RESPONSES)
    async def health() -> Response:
        return health_response(engine)

    return app


async def prepared(
    service: Service, request: Request, body: GenerationRequest, answer: Callable[[], Response]
) -> Response:
    """Response that ``answer`` makes of a request, tokenizing it. A large one is read beside the event loop, while
    others are served, and so is one with a grammar; it is forgotten when the client leaves (`ClientGoneError`) or the
    server closes (`ApiError` 503)."""
    size = request.headers.get("content-length", "")
    if size.isdigit() and int(size) <= SMALL_BODY and not is_structured(body):
        return answer()
    if service.closing.is_set():
        raise shutting_down()
    return await while_wanted(request.receive, service.closing, service.reading.run(answer))


def names_of(engine: Engine) -> tuple[str, ...]:
    """Names that the model may be called by: its name, and that without the owner (``llama`` for ``meta/llama``)."""
    return tuple(dict.fromkeys((engine.name, engine.name.rstrip("/").rpartition("/")[2])))


def check_model(engine: Engine, name: str | None) -> None:
    """Raise `ApiError` 404 unless ``name`` is the served model. None: the served model."""
    if name is not None and name not in names_of(engine):
        raise ApiError(
            404, f"the model {name!r} is not served here; {engine.name!r} is", code="model_not_found", param="model"
        )


def model_card(engine: Engine) -> ModelCard:
    return ModelCard(engine.name, engine.created, engine.max_context)


def health_response(engine: Engine) -> Response:
    """200 while the engine runs, else 503 with the reason; since when, and how often it has come back."""
    health = engine.health()
    ready = health.state == "ready"
    body = HealthBody(
        "ok" if ready else health.state,
        engine.name,
        health.running,
        health.waiting,
        round(health.since, 3),
        health.recoveries,
        health.last_recovery,
        health.error,
        health.note,
    )
    return respond(body, 200 if ready else 503)

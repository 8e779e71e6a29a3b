"""The HTTP application: which path does what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from msgspec import UNSET

from ferrule import __version__
from ferrule.engine import Engine
from ferrule.model import Hub
from ferrule.serve.answer.prompt import IMAGE_BODY_BYTES, body_limit
from ferrule.serve.answer.service import MAX_SEQUENCES, Service
from ferrule.serve.anthropic import routes as anthropic_routes
from ferrule.serve.http.auth import Guard
from ferrule.serve.http.errors import described, described_as, install
from ferrule.serve.http.respond import respond
from ferrule.serve.hub import routes as hub_routes
from ferrule.serve.images.fetch import Fetcher
from ferrule.serve.keys.allowed import AllowedModels
from ferrule.serve.keys.keyring import Keyring
from ferrule.serve.models import Aliases, Models, OneModel
from ferrule.serve.models.leases import Leases
from ferrule.serve.models.many import ManyModels
from ferrule.serve.models.offer import state_of, together
from ferrule.serve.ollama import routes as ollama_routes
from ferrule.serve.openai import routes as openai_routes
from ferrule.serve.openai.objects import HealthBody, ManyHealthBody, ModelHealth
from ferrule.serve.tools.families import AUTO, dialect

EXPOSED = (
    "Retry-After",
    *(f"x-ratelimit-{value}-{of}" for of in ("requests", "tokens") for value in ("limit", "remaining", "reset")),
)
"""Headers that pages of other origins may read."""

HEALTH_RESPONSES = {
    **described(400, 403, 408, 431),
    200: described_as("the answer, of one model or of several", HealthBody, ManyHealthBody),
    503: described_as("the model does not run; `status` says why", HealthBody, ManyHealthBody),
}


def create_app(
    engine: Engine | ManyModels,
    *,
    api_key: str | None,
    keys: Path | None = None,
    origins: Sequence[str] = (),
    max_sequences: int = MAX_SEQUENCES,
    max_queue_seconds: float | None = None,
    tool_parser: str = AUTO,
    aliases: Aliases | None = None,
    fetcher: Fetcher | None = None,
    shared: Hub | None = None,
) -> FastAPI:
    """The application that serves ``engine``, or several models. Engines remain the caller's to close.

    ``api_key``: what clients must send as bearer token; ``keys``: a file of further ones, with their limits. Where
    there are neither, only requests to loopback names are answered.
    ``origins``: of web pages that may send requests from browsers (CORS), such as ``https://chat.example``.
    ``tool_parser``: format of the model's tool calls, as `dialect` takes it.
    ``max_sequences``: how many sequences may be running or waiting before clients get status 429;
    ``max_queue_seconds``: so do requests whose turn is predicted to come later.
    ``tool_parser``, ``max_sequences`` and ``aliases`` are of one model; several have their own.
    ``fetcher``: of images that requests name by URL; None: such requests are refused. ``shared``: whose downloads other
    hosts may have.
    ``app.state.models.close()`` ends every answer. Raises `ConfigError` for an empty key, and for
    a file of keys that cannot be used.
    """
    keyring = Keyring(api_key, keys)
    served: Models
    if isinstance(engine, ManyModels):
        served = engine
    else:
        spoken = dialect(engine.tokenizer.chat_template, tool_parser, engine.tokenizer.response_template)
        served = OneModel(Service(engine, spoken, max_sequences=max_sequences), aliases)
    longest = max(each.max_context for each in served.cards())
    models = AllowedModels(served)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        models.close()

    # The documentation pages would load scripts from elsewhere; the description of the API itself stays.
    app = FastAPI(title="Ferrule", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.models, app.state.fetcher, app.state.max_queue_seconds = models, fetcher, max_queue_seconds
    sees = any(each.image_marker is not None for each in served.cards())
    images = IMAGE_BODY_BYTES if sees else 0
    app.add_middleware(Guard, keys=keyring, body_limit=body_limit(longest), image_bytes=images)
    app.add_middleware(Leases)
    if origins:  # outside of the guard: a browser asks first without the key, and reads refusals, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=[*EXPOSED],
        )
    install(app, keyed=keyring.keyed)

    ollama_routes.add_routes(app, models)
    openai_routes.add_routes(app, models, parser_of=_parser_of(engine, tool_parser))
    anthropic_routes.add_routes(app, models)
    if shared is not None:
        hub_routes.add_routes(app, shared)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses=HEALTH_RESPONSES)
    async def health() -> Response:
        if isinstance(engine, ManyModels):
            return many_health(engine, {each.name for each in models.cards()})
        return health_response(engine)

    return app


def _parser_of(served: Engine | ManyModels, tool_parser: str) -> Callable[[Engine], str]:
    return served.parser_of if isinstance(served, ManyModels) else lambda _: tool_parser


def many_health(models: ManyModels, shown: Collection[str]) -> Response:
    """200 unless no model runs and the first one cannot; the state of each of those that are ``shown``."""
    states = {}
    for offer, engine in models.states():
        health = engine.health()
        states[offer.name] = ModelHealth(
            "ok" if health.state == "ready" else state_of(engine),
            offer.need.total,
            health.running,
            health.waiting,
            offer.pin,
            health.error,
            health.note,
            health.prefix,
            health.speculation,
            health.streamed,
        )
    status = together([state_of(engine) for _, engine in models.states()])
    status = "ok" if status == "ready" else status
    told = {name: each for name, each in states.items() if name in shown}
    return respond(ManyHealthBody(status, told, next(iter(told), UNSET)), 200 if status == "ok" else 503)


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
        health.prefix,
        health.speculation,
        health.streamed,
        health.replicas,
        health.hand_over,
        engine.plan.context,
    )
    return respond(body, 200 if ready else 503)

"""``POST /api/embed`` and the older ``/api/embeddings``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi.responses import Response

from ferrule.serve.answer.service import Service
from ferrule.serve.http.errors import ApiError
from ferrule.serve.http.respond import respond
from ferrule.serve.ollama.objects import Embedded, Embedding
from ferrule.serve.ollama.schemas import EmbeddingsRequest, EmbedRequest


@dataclass(frozen=True)
class Vectors:
    """Embeddings of several texts, and how many tokens these have together."""

    vectors: Sequence[Sequence[float]]
    tokens: int


def gives_embeddings(service: Service) -> bool:
    """Whether the model makes vectors of texts."""
    return False


async def embeddings_of(service: Service, texts: Sequence[str], *, dimensions: int | None, truncate: bool) -> Vectors:
    """Embeddings of ``texts``, each cut to ``dimensions`` numbers. Texts that are too long are cut where ``truncate``
    says so. Raises `ApiError` 400 where the model gives none."""
    raise ApiError(400, f"the model {service.engine.name!r} gives no embeddings", code="unsupported", param="model")


async def answer_embed(service: Service, body: EmbedRequest, begun: int) -> Response:
    loaded = time.monotonic_ns()
    made = await embeddings_of(service, body.input, dimensions=body.dimensions, truncate=body.truncate is not False)
    return respond(
        Embedded(
            model=body.model,
            embeddings=made.vectors,
            total_duration=time.monotonic_ns() - begun,
            load_duration=loaded - begun,
            prompt_eval_count=made.tokens,
        )
    )


async def answer_embeddings(service: Service, body: EmbeddingsRequest) -> Response:
    made = await embeddings_of(service, [body.prompt], dimensions=None, truncate=True)
    return respond(Embedding(made.vectors[0]))

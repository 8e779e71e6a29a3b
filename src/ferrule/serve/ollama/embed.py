"""``POST /api/embed`` and the older ``/api/embeddings``."""

from __future__ import annotations

import time

from fastapi.responses import Response

from ferrule.serve.answer.embedding import embed_texts
from ferrule.serve.answer.service import Service
from ferrule.serve.http.respond import respond
from ferrule.serve.ollama.objects import Embedded, Embedding
from ferrule.serve.ollama.schemas import EmbeddingsRequest, EmbedRequest


async def answer_embed(service: Service, body: EmbedRequest, begun: int) -> Response:
    """Texts that are too long are cut unless ``truncate`` is false. Raises as `embed_texts` does."""
    loaded = time.monotonic_ns()
    made = await embed_texts(service, body.input, dimensions=body.dimensions, truncate=body.truncate is not False)
    return respond(
        Embedded(
            model=body.model,
            embeddings=[each.tolist() for each in made.vectors],
            total_duration=time.monotonic_ns() - begun,
            load_duration=loaded - begun,
            prompt_eval_count=made.tokens,
        )
    )


async def answer_embeddings(service: Service, body: EmbeddingsRequest) -> Response:
    made = await embed_texts(service, [body.prompt], field="prompt", truncate=True)
    return respond(Embedding(made.vectors[0].tolist()))

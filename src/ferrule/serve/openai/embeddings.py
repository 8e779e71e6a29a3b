"""``POST /v1/embeddings``: from texts to OpenAI's list of vectors."""

from __future__ import annotations

from ferrule.serve.answer.embedding import embed_texts
from ferrule.serve.answer.service import Service
from ferrule.serve.openai.objects import EmbeddingUsage, Vector, VectorList
from ferrule.serve.openai.sampling import check_token
from ferrule.serve.openai.schemas import EmbeddingRequest


async def answer_embeddings(service: Service, body: EmbeddingRequest) -> VectorList:
    """Raises `RequestError` where an input has no vector here."""
    for each in body.input:
        for token in each if isinstance(each, list) else ():
            check_token(token, service.engine.vocab_size, "input")
    found = await embed_texts(service, body.input, dimensions=body.dimensions)
    base64 = body.encoding_format == "base64"  # as the encoder of JSON writes bytes
    data = [
        Vector(index, each.astype("<f4").tobytes() if base64 else each.tolist())
        for index, each in enumerate(found.vectors)
    ]
    return VectorList(data, service.engine.name, EmbeddingUsage(found.tokens, found.tokens))

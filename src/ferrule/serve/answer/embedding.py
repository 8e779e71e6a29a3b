"""Vectors of texts, for every API that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ferrule.engine import Engine, normalized
from ferrule.errors import RequestError
from ferrule.serve.answer.prompt import encode, too_long
from ferrule.serve.answer.service import Service
from ferrule.serve.answer.turns import NOTHING_ASKED, granted
from ferrule.serve.http.exchange import current_exchange

if TYPE_CHECKING:
    from ferrule.engine import Vector

AT_ONCE = 32
"""Texts of one request that are computed at once: each takes a place of `Service.admit`."""


MOST_CHARACTERS = 32
"""Of a token, when a text is cut: those of most vocabularies have at most 16, and runs of spaces more."""


@dataclass(frozen=True)
class Embedded:
    """``vectors`` of the texts, in float32. ``tokens``: of all texts together."""

    vectors: list[Vector]
    tokens: int


async def embed_texts(
    service: Service,
    texts: Sequence[str | Sequence[int]],
    *,
    dimensions: int | None = None,
    field: str = "input",
    truncate: bool = False,
) -> Embedded:
    """A vector of each of ``texts``, or of its token ids. ``dimensions``: to which vectors are cut, and given length 1
    again. ``field``: what the request calls the texts. ``truncate``: texts beyond the context are cut. Raises
    `RequestError` for an empty text, one that is too long, and dimensions for which the model was not trained;
    `ApiError` as `Service.admit` does."""
    engine = service.engine
    with service.admit(min(len(texts), AT_ONCE)):
        prompts = await service.reading.run(partial(_tokens, engine, texts, field, truncate))
        exchange = current_exchange()
        exchange.count(prompt=sum(map(len, prompts)))
        turn = granted(NOTHING_ASKED, exchange.caller)
        vectors: list[Vector] = []
        for at in range(0, len(prompts), AT_ONCE):
            found = await engine.embed(prompts[at : at + AT_ONCE], turn=turn)
            vectors += [each if dimensions is None else _cut(engine, each, dimensions) for each in found]
    return Embedded(vectors, sum(map(len, prompts)))


def _tokens(engine: Engine, texts: Sequence[str | Sequence[int]], field: str, truncate: bool) -> list[tuple[int, ...]]:
    if engine.embedding.lower:
        texts = [each.lower() if isinstance(each, str) else each for each in texts]
    if truncate:
        prompts = [_cut_text(engine, each) if isinstance(each, str) else tuple(each) for each in texts]
    else:
        prompts = [encode(engine, each, field=field) if isinstance(each, str) else tuple(each) for each in texts]
    for prompt in prompts:
        if not prompt:
            raise RequestError(f"{field}: a text is empty, and has no vector", param=field)
        if len(prompt) > engine.max_context:
            raise too_long(engine, f"{len(prompt)} tokens,", field)
    return prompts


def _cut_text(engine: Engine, text: str) -> tuple[int, ...]:
    """The first tokens of ``text``, with those that the tokenizer puts at every text's end, by which some pool."""
    tokens = engine.tokenizer.encode(text[: engine.max_context * MOST_CHARACTERS])
    if len(tokens) <= engine.max_context:
        return tuple(tokens)
    bare, whole = engine.tokenizer.encode("a", add_special_tokens=False), engine.tokenizer.encode("a")
    end = whole[whole.index(bare[-1]) + 1 :] if bare and bare[-1] in whole else []
    return (*tokens[: engine.max_context - len(end)], *end)


def _cut(engine: Engine, vector: Vector, dimensions: int) -> Vector:
    known, width = engine.embedding, len(vector)
    if dimensions == width:
        return vector
    if dimensions not in known.dimensions and not (known.matryoshka and dimensions < width):
        can = ", ".join(map(str, known.dimensions)) or (f"up to {width}" if known.matryoshka else "")
        raise RequestError(
            f"dimensions: this model's vectors have {width} numbers, and it does not say that they can be cut to "
            f"{dimensions}; leave it out" + (f", or give {can}" if can else ""),
            param="dimensions",
        )
    return normalized(vector[:dimensions])

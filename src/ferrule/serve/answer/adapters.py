"""A model as its LoRA adapters change it: a service for each adapter, over one engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ferrule.engine import Engine, ImageInput, SamplingParams, Token, Turn
from ferrule.engine.turn import FIRST_COME
from ferrule.errors import RequestError
from ferrule.model import PoolingMode
from ferrule.serve.answer.service import Service

if TYPE_CHECKING:
    from ferrule.engine import Vector


class AdapterEngine:
    """`ferrule.engine.Engine` whose requests all take ``adapter``; what else it says of itself is the ``base``'s."""

    def __init__(self, base: Engine, adapter: str) -> None:
        self.base, self.adapter = base, adapter
        self.name = f"{base.name}:{adapter}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def generate(
        self, prompt: Sequence[int], params: SamplingParams, images: Sequence[ImageInput] = ()
    ) -> AsyncGenerator[Token, None]:
        return self.base.generate(prompt, replace(params, adapter=self.adapter), images)

    async def embed(
        self, prompts: Sequence[Sequence[int]], pooling: PoolingMode | None = None, *, turn: Turn = FIRST_COME
    ) -> list[Vector]:
        """Raises `RequestError`: vectors would be those of the base."""
        raise RequestError("embeddings are made by the base model, without adapter", param="model", code="unsupported")


class AdapterService(Service):
    """`Service` of ``adapter``, which shares all of the ``base``'s, and counts its sequences with those of that."""

    def __init__(self, base: Service, adapter: str) -> None:
        vars(self).update(vars(base))
        self._base = base
        self.engine = cast(Engine, AdapterEngine(base.engine, adapter))

    @contextmanager
    def admit(self, sequences: int) -> Iterator[None]:
        with self._base.admit(sequences):
            yield


def with_adapters(service: Service) -> tuple[Service, ...]:
    """``service``, and one for each adapter of its engine."""
    return (service, *(AdapterService(service, adapter) for adapter in service.engine.adapters))

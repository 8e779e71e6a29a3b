"""Models as clients are told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import UNSET

from ferrule.engine import Engine
from ferrule.serve.answer.adapters import AdapterEngine
from ferrule.serve.answer.capabilities import capabilities
from ferrule.serve.models.offer import state_of
from ferrule.serve.openai.objects import ModelCard
from ferrule.serve.tools.families import dialect


class Cards:
    """Cards of models. What a model can do is found out once. ``parser_of``: format of its tool calls, as `dialect`
    takes it."""

    def __init__(self, parser_of: Callable[[Engine], str]) -> None:
        self._parser_of = parser_of
        self._known: dict[tuple[str, int], list[str]] = {}

    async def of(self, engine: Engine) -> ModelCard:
        key = engine.name, engine.created
        if key not in self._known:
            tokenizer = engine.tokenizer
            speaks = dialect(tokenizer.chat_template, self._parser_of(engine), tokenizer.response_template)
            self._known[key] = await asyncio.to_thread(capabilities, engine, speaks)
        room = engine.max_context
        base = engine.base.name if isinstance(engine, AdapterEngine) else UNSET
        return ModelCard(
            engine.name,
            engine.created,
            room,
            room,
            room,
            self._known[key],
            root=base,
            parent=base,
            state=state_of(engine),
            replicas=engine.health().replicas or UNSET,
        )

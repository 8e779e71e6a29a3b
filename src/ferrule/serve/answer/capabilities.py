"""Capabilities of a model, for every API that lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ferrule.engine import Engine
from ferrule.serve.tools.families import Dialect


def can_call(engine: Engine, speaks: Dialect) -> bool:
    """Whether the model's template shows it tools, and its calls can be read."""
    return speaks.calls and "tools" in engine.tokenizer.template_names


EMBEDDINGS: Final = "embeddings"
CAPABILITIES: Final[Mapping[str, Callable[[Engine, Dialect], bool]]] = {
    "completion": lambda *_: True,
    "chat": lambda engine, _: engine.tokenizer.has_chat_template,
    "tools": can_call,
    "reasoning": lambda _, speaks: speaks.reasons,
    "structured_output": lambda engine, _: (
        "json_schema" in engine.abilities.constraints and engine.tokenizer.to_json() is not None
    ),
    "vision": lambda engine, _: engine.image_marker is not None,
    EMBEDDINGS: lambda engine, _: engine.abilities.embeddings and engine.embedding.refusal is None,
}
"""By the names of OpenAI's list, of a model that answers; one that only makes vectors has no other than these. The
tokenizer is written out for that of grammars, which takes long."""


def capabilities(engine: Engine, speaks: Dialect, among: Iterable[str] = CAPABILITIES) -> list[str]:
    """Those of `CAPABILITIES` that ``engine``'s model has, whose dialect is ``speaks``. ``among``: those that are
    looked at."""
    can = (EMBEDDINGS,) if engine.embedding.only else CAPABILITIES
    return [name for name in among if name in can and CAPABILITIES[name](engine, speaks)]

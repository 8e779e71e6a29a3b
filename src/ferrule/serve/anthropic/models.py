"""Models as Anthropic's API lists them."""

from __future__ import annotations

from datetime import UTC, datetime

from ferrule.engine import Engine
from ferrule.serve.anthropic.objects import ModelInfo, ModelPage


def model_page(engines: list[Engine]) -> ModelPage:
    """Models as ``GET /v1/models`` of Anthropic's API lists them."""
    data = [model_info(engine) for engine in engines]
    return ModelPage(data, data[0].id if data else None, data[-1].id if data else None)


def model_info(engine: Engine) -> ModelInfo:
    created = datetime.fromtimestamp(engine.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelInfo(engine.name, engine.name, created, engine.max_context, engine.max_context)

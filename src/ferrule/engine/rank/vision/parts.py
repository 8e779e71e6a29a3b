"""Parts of a model as transformers builds it: the language model, and what sees."""

from __future__ import annotations

from typing import Any

from torch import nn

from ferrule.engine.rank.layers import PassThrough

LANGUAGE = "language_model"
"""Name of that part of a model that takes images."""


def base_name(model: Any) -> str:
    """The name of the module that holds the layers: Llama 4's text model calls it otherwise than its class says."""
    prefix: str = model.base_model_prefix if hasattr(model, model.base_model_prefix) else "model"
    return f"{prefix}.{LANGUAGE}" if hasattr(model.get_submodule(prefix), LANGUAGE) else prefix


def tower_of(model: Any) -> dict[str, nn.Module]:
    """The modules of ``model`` that see, by name; none where it takes text only."""
    prefix, _, language = base_name(model).rpartition(".")
    if language != LANGUAGE or not prefix:
        return {}
    return {f"{prefix}.{name}": each for name, each in model.get_submodule(prefix).named_children() if name != LANGUAGE}


def drop_tower(model: Any) -> None:
    """Leave no memory to what sees."""
    for name in tower_of(model):
        model.set_submodule(name, PassThrough())

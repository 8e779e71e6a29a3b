"""Embedding of a text by a model, as sentence-transformers' files beside its weights describe it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ferrule.errors import ModelError

PoolingMode = Literal["mean", "last", "cls"]
"""Of the hidden states of a text's tokens: their mean, that of the last one, or that of the first one."""

MODULES = "modules.json"
"""The file that lists what a sentence-transformers model is made of, in order."""
_MODES: Mapping[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_NAMED: Mapping[str, PoolingMode] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}


@dataclass(frozen=True)
class Embedding:
    """``normalize``: vectors are given length 1. ``dimensions``: to which they may be cut, the rest being of less
    weight (Kusupati and others, "Matryoshka representation learning", 2022); ``matryoshka``: to any.
    ``refusal``: why none can be made. ``only``: the model has no output layer, and makes nothing else. A model that
    says nothing is taken for a decoder, whose last token has seen the whole text."""

    pooling: PoolingMode = "last"
    normalize: bool = True
    matryoshka: bool = False
    dimensions: tuple[int, ...] = ()
    refusal: str | None = None
    only: bool = False


def read_embedding(directory: Path) -> Embedding:
    """Raises `ModelError` where a file is no JSON of the form that sentence-transformers writes."""
    config = _read(directory / "config.json")
    shorter = config.get("matryoshka_dimensions") if isinstance(config, dict) else None
    dimensions = tuple(each for each in shorter if type(each) is int) if isinstance(shorter, list) else ()
    matryoshka = isinstance(config, dict) and config.get("is_matryoshka") is True and not dimensions
    modules = _read(directory / MODULES)
    if modules is None:
        return Embedding(matryoshka=matryoshka, dimensions=dimensions)
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise ModelError(f"{directory / MODULES} is not the list of modules that sentence-transformers writes")
    pooling: PoolingMode = "last"
    normalize = False
    for each in modules:
        kind = str(each.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            found = _mode(directory / str(each.get("path", "")) / "config.json")
            if found is None:
                return Embedding(refusal="this model pools hidden states in a way other than mean, last or cls")
            pooling = found
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            return Embedding(refusal=f"this model's vectors go through a module {kind[:40]!r}, which is not run here")
    return Embedding(pooling, normalize, matryoshka, dimensions)


def lacks_head(directory: Path, *, tied: bool, has_head: bool) -> bool:
    """Whether a model was saved without its output layer, of which vectors have no need (Qwen3-Embedding-8B).
    ``tied``: it has the embedding's weights. ``has_head``: among the stored tensors are its own."""
    return not tied and not has_head and (directory / MODULES).is_file()


def _mode(file: Path) -> PoolingMode | None:
    """The one way of pooling that ``file`` switches on; None for others, and for several at once."""
    told = _read(file)
    if not isinstance(told, dict):
        raise ModelError(f"{file} says how hidden states are pooled, and is missing or no JSON object")
    if isinstance(told.get("pooling_mode"), str):
        return _NAMED.get(told["pooling_mode"])
    wanted = [name for name, value in told.items() if name.startswith("pooling_mode_") and value is True]
    return _MODES.get(wanted[0]) if len(wanted) == 1 else None


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None

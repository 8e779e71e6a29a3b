"""Embedding of a text by a model, as sentence-transformers' files beside its weights describe it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ferrule.errors import ModelError

PoolingMode = Literal["mean", "last", "cls", "max", "mean_sqrt_len", "weighted_mean"]
"""Of the hidden states of a text's tokens: their mean, that of the last one, that of the first one, the largest of each
number, their sum by the root of their number, or their mean weighted by their places from 1 on."""

Activation = Literal["Identity", "Tanh", "ReLU", "Sigmoid"]

MODULES = "modules.json"
"""The file that lists what a sentence-transformers model is made of, in order."""
_MODES: Mapping[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_NAMED: Mapping[str, PoolingMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_FIRST_MODULE = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json",
    "sentence_camembert_config.json", "sentence_xlm-roberta_config.json", "sentence_mpnet_config.json")  # fmt: skip
"""Names that sentence-transformers has had for the settings of its first module."""


@dataclass(frozen=True)
class DenseLayer:
    """Layer that vectors go through after pooling: its ``folder`` beside the model's weights, and the ``activation``
    behind its matrix."""

    folder: str
    activation: Activation


@dataclass(frozen=True)
class Embedding:
    """``dense``: what vectors go through after pooling. ``normalize``: then they are given length 1. ``dimensions``: to
    which they may be cut, the rest being of less weight (Kusupati and others, "Matryoshka representation learning",
    2022); ``matryoshka``: to any. ``longest``: tokens of a text for which the model was trained, if that is said.
    ``lower``: texts are made lower case first. ``refusal``: why no vector can be made. ``only``: the model makes
    nothing else: it is an encoder, or has no output layer. A decoder that says nothing pools its last token, which has
    seen the whole text."""

    pooling: PoolingMode = "last"
    normalize: bool = True
    matryoshka: bool = False
    dimensions: tuple[int, ...] = ()
    refusal: str | None = None
    only: bool = False
    dense: tuple[DenseLayer, ...] = ()
    longest: int | None = None
    lower: bool = False


def read_embedding(directory: Path, *, encoder: bool = False) -> Embedding:
    """Raises `ModelError` where a file is no JSON of the form that sentence-transformers writes. An ``encoder`` that
    says nothing has the mean of its tokens."""
    config = _read(directory / "config.json")
    shorter = config.get("matryoshka_dimensions") if isinstance(config, dict) else None
    dimensions = tuple(each for each in shorter if type(each) is int) if isinstance(shorter, list) else ()
    matryoshka = isinstance(config, dict) and config.get("is_matryoshka") is True and not dimensions
    longest, lower = _settings(directory)
    found = Embedding(
        "mean" if encoder else "last",
        matryoshka=matryoshka,
        dimensions=dimensions,
        only=encoder,
        longest=longest,
        lower=lower,
    )
    modules = _read(directory / MODULES)
    if modules is None:
        return found
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise ModelError(f"{directory / MODULES} is not the list of modules that sentence-transformers writes")
    found, pooled = replace(found, normalize=False), False
    for each in modules:
        kind, folder = str(each.get("type", "")).rpartition(".")[2], str(each.get("path", ""))
        try:
            found = _with(found, kind, directory, folder, pooled=pooled)
            pooled |= kind == "Pooling"
        except _NotRunError as error:
            return replace(found, refusal=str(error))
    return found


def lacks_head(directory: Path, *, tied: bool, has_head: bool) -> bool:
    """Whether a model was saved without its output layer, of which vectors have no need (Qwen3-Embedding-8B).
    ``tied``: it has the embedding's weights. ``has_head``: among the stored tensors are its own."""
    return not tied and not has_head and (directory / MODULES).is_file()


class _NotRunError(Exception):
    """Its text says what of the files is not run here."""


def _with(found: Embedding, kind: str, directory: Path, folder: str, *, pooled: bool) -> Embedding:
    """``found`` with one more module. ``pooled``: hidden states are, by then. Raises `_NotRunError`."""
    match kind:
        case "Transformer":
            _check_transformer(directory)
            return found
        case "Dropout":
            return found
        case "Pooling" if not pooled:
            return replace(found, pooling=_mode(directory / folder / "config.json"))
        case "Normalize":
            _check_module(_read(directory / folder / "config.json"), folder)
            return replace(found, normalize=True)
        case "Dense" if pooled and not found.normalize:
            return replace(found, dense=(*found.dense, DenseLayer(folder, _activation(directory, folder))))
    raise _NotRunError(f"this model's vectors go through a module {kind[:40]!r}, which is not run here")


def _mode(file: Path) -> PoolingMode:
    """The one way of pooling that ``file`` switches on."""
    told = _read(file)
    if not isinstance(told, dict):
        raise ModelError(f"{file} says how hidden states are pooled, and is missing or no JSON object")
    if isinstance(told.get("pooling_mode"), str):
        mode = _NAMED.get(told["pooling_mode"])
    else:
        wanted = [name for name, value in told.items() if name.startswith("pooling_mode_") and value is True]
        mode = _MODES.get(wanted[0]) if len(wanted) == 1 else None
    if mode is None:
        raise _NotRunError(f"this model pools hidden states in a way other than one of {', '.join(_NAMED)}")
    return mode


def _activation(directory: Path, folder: str) -> Activation:
    """Activation of a dense layer, whose matrix is in a file that can be read."""
    file = directory / folder / "config.json"
    told = _read(file)
    if not isinstance(told, dict):
        raise ModelError(f"{file} describes a dense layer, and is missing or no JSON object")
    _check_module(told, folder)
    name = str(told.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    known: Mapping[str, Activation] = {each: each for each in get_args(Activation)}
    if name not in known:
        raise _NotRunError(f"the activation {name[:40]!r} of this model's dense layer {folder} is not run here")
    return known[name]


def _check_module(told: Any, folder: str) -> None:
    """Raise `_NotRunError` where a module after pooling does something else than usual."""
    names = ("module_input_name", "module_output_name")
    if isinstance(told, dict) and (
        told.get("use_residual") or any(told.get(name) not in (None, "sentence_embedding") for name in names)
    ):
        raise _NotRunError(f"this model's module {folder} is of tokens, or adds a residual, which is not run here")


def _check_transformer(directory: Path) -> None:
    """Raise `_NotRunError` where the first module gives something else than hidden states."""
    told = _first_module(directory) or {}
    kinds = told.get("modality_config")
    text = kinds.get("text") if isinstance(kinds, dict) else None
    output = text.get("method_output_name") if isinstance(text, dict) else None
    if output not in (None, "last_hidden_state") or told.get("module_output_name") not in (None, "token_embeddings"):
        raise _NotRunError("this model's vectors are made of something else than its last hidden states")


def _first_module(directory: Path) -> dict[str, Any] | None:
    found = (_read(directory / name) for name in _FIRST_MODULE)
    return next((told for told in found if isinstance(told, dict)), None)


def _settings(directory: Path) -> tuple[int | None, bool]:
    """Tokens of the longest text, by the settings of the first module, else of the tokenizer; and whether texts are
    made lower case."""
    told = _first_module(directory)
    if told is None:
        return None, False
    longest = told.get("max_seq_length")
    if longest is None:
        tokenizer = _read(directory / "tokenizer_config.json")
        longest = tokenizer.get("model_max_length") if isinstance(tokenizer, dict) else None
    return longest if type(longest) is int and longest > 0 else None, told.get("do_lower_case") is True


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None

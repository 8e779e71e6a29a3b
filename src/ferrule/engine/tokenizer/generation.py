"""Generation defaults that a model's makers recommend, and the tokens that end an answer."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec

from ferrule.engine.gguf.tokenizer import sampling_defaults
from ferrule.engine.source import read_config
from ferrule.engine.types import SamplingParams
from ferrule.errors import ModelError, RequestError
from ferrule.model.gguf import gguf_file
from ferrule.model.headers import read_json

_Ends = int | list[int] | None


class _Recommended(msgspec.Struct):
    """The fields of ``generation_config.json`` that are used."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_token_id: _Ends = None


def generation_defaults(directory: Path) -> tuple[SamplingParams, frozenset[int]]:
    """Generation defaults of ``generation_config.json``, and the token ids that end an answer; where there is none,
    those of the model's own configuration. Those of a GGUF file come with its tokenizer. Raises
    `ModelError` where that cannot be."""
    gguf = gguf_file(directory)
    if gguf is not None:
        return sampling_defaults(gguf), frozenset()
    file = directory / "generation_config.json"
    if not file.exists():
        return SamplingParams(), _ids(_configured_ends(directory))
    try:
        told = msgspec.structs.asdict(msgspec.convert(read_json(file), _Recommended))
    except msgspec.ValidationError as error:
        raise ModelError(f"{file} cannot be read: {error}") from None
    ends = told.pop("eos_token_id")
    try:
        return SamplingParams(**{name: value for name, value in told.items() if value is not None}), _ids(ends)
    except RequestError as error:
        raise ModelError(f"{file}: {error}") from None


def _configured_ends(directory: Path) -> _Ends:
    file = directory / "config.json"
    told = read_json(file)
    ends = told["eos_token_id"] if "eos_token_id" in told else getattr(read_config(directory), "eos_token_id", None)
    try:
        return cast(_Ends, msgspec.convert(ends, _Ends))
    except msgspec.ValidationError as error:
        raise ModelError(f"{file}: eos_token_id cannot be: {error}") from None


def _ids(given: _Ends) -> frozenset[int]:
    return frozenset([given] if isinstance(given, int) else given or [])

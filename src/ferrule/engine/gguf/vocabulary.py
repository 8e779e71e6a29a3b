"""The vocabulary of a GGUF file, checked: its tokens, what they are, and which have a part in generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ferrule.errors import ModelError
from ferrule.model.gguf import GgufModel

_PREFIX = "tokenizer.ggml."


class Kind(IntEnum):
    """Of a token (``tokenizer.ggml.token_type``)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """``tokens`` by number, with their ``kinds`` and, where the file has them, ``scores`` and ``merges``. ``model`` and
    ``cut``: the tokenizer's kind, and of a byte-level one how it cuts text."""

    file: str
    architecture: str
    model: str
    cut: str
    tokens: list[str]
    kinds: list[int]
    scores: list[float] | None
    merges: list[tuple[str, str]] | None
    values: Mapping[str, Any]

    def special(self, name: str) -> str | None:
        """The token of role ``name`` (bos, eos, eot, unknown, padding …); None where there is none."""
        number = self.values.get(f"{_PREFIX}{name}_token_id")
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(self.tokens):
            return None
        return self.tokens[number]

    def flag(self, name: str) -> bool | None:
        value = self.values.get(_PREFIX + name)
        return value if isinstance(value, bool) else None


def vocabulary(model: GgufModel) -> Vocabulary:
    """``model`` was read with its arrays. Raises `ModelError` where it has no vocabulary, or a damaged one."""
    file, values = str(model.file), model.values
    tokens = _strings(values, "tokens", file)
    if not tokens:
        raise ModelError(f"{file} holds no tokenizer; use the directory of the model's safetensors")
    kinds = _numbers(values, "token_type", file)
    scores = _numbers(values, "scores", file)
    for name, listed in (("token_type", kinds), ("scores", scores)):
        if listed is not None and len(listed) != len(tokens):
            raise ModelError(f"{file}: {_PREFIX}{name} has {len(listed)} entries for {len(tokens)} tokens")
    merges = _strings(values, "merges", file)
    return Vocabulary(
        file=file,
        architecture=str(values.get("general.architecture", "")),
        model=str(values.get(f"{_PREFIX}model", "")),
        cut=str(values.get(f"{_PREFIX}pre", "")),
        tokens=tokens,
        kinds=[int(each) for each in kinds] if kinds is not None else [Kind.NORMAL] * len(tokens),
        scores=scores,
        merges=[_merge(each, file) for each in merges] if merges else None,
        values=values,
    )


def _merge(text: str, file: str) -> tuple[str, str]:
    left, space, right = text[:1] + text[1:].partition(" ")[0], *text[1:].partition(" ")[1:]
    if not space or not right:
        raise ModelError(f"{file}: {_PREFIX}merges holds {text[:40]!r}, which is no pair; download it again")
    return left, right


def _strings(values: Mapping[str, Any], name: str, file: str) -> list[str]:
    found = values.get(_PREFIX + name, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ModelError(f"{file}: {_PREFIX}{name} is no list of texts; download it again")
    return found


def _numbers(values: Mapping[str, Any], name: str, file: str) -> list[Any] | None:
    found = values.get(_PREFIX + name)
    if found is not None and not (isinstance(found, list) and all(isinstance(each, int | float) for each in found)):
        raise ModelError(f"{file}: {_PREFIX}{name} is no list of numbers; download it again")
    return found or None

"""A GGUF model's key-values, read one by one with errors that name the key and the file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ferrule.errors import ModelError
from ferrule.model.families.fields import MOST
from ferrule.model.gguf.files import GgufModel

Config = dict[str, Any]
"""What ``config.json`` would hold."""
_MOST_FACTORS = 1 << 12
"""Numbers of a table of rotary factors: one for each pair of a head's numbers."""


class Metadata:
    """``architecture``: the prefix of the keys that `integer`, `number` and `flag` read."""

    def __init__(self, model: GgufModel) -> None:
        self.model = model
        self.tensors = {tensor.name: tensor for tensor in model.tensors}
        self.architecture = self.text("general.architecture")
        if not self.architecture:
            raise ModelError(f"{model.file} lacks general.architecture; is it a language model?")

    def text(self, key: str) -> str:
        """Empty where it is not there."""
        value = self.model.values.get(key, "")
        if not isinstance(value, str):
            raise self.error(key, "is no text")
        return value

    def integer(self, name: str) -> int | list[int] | None:
        """A whole number, or where layers differ in it a list with one for each; None where it is not there."""
        key = f"{self.architecture}.{name}"
        value = self.model.values.get(key)
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]
        each: list[Any] = value if isinstance(value, list) else [value]
        if value is not None and not all(_is_integer(number) and 0 <= int(number) <= MOST for number in each):
            raise self.error(key, f"is not between 0 and {MOST}")
        return value

    def one(self, name: str) -> int | None:
        """A whole number; None where it is not there."""
        value = self.integer(name)
        if isinstance(value, list):
            raise self.error(f"{self.architecture}.{name}", "differs between layers")
        return value

    def number(self, name: str) -> float | None:
        key = f"{self.architecture}.{name}"
        value = self.model.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, "is no number")
        return float(value)

    def flag(self, name: str) -> bool | None:
        key = f"{self.architecture}.{name}"
        value = self.model.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, "is neither true nor false")
        return value

    def token(self, name: str) -> int | None:
        """A token's number, as ``tokenizer.ggml.<name>_token_id`` has it; None where it is not there."""
        key = f"tokenizer.ggml.{name}_token_id"
        value = self.model.values.get(key)
        if value is not None and (not _is_integer(value) or not 0 <= value < 1 << 32):
            raise self.error(key, "is no token's number")
        return None if value is None or value >= MOST else int(value)

    def factors(self, name: str) -> list[float] | None:
        """The numbers of the small F32 tensor ``name``; None where it is not there."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        if tensor.dtype != "F32" or len(tensor.shape) != 1 or tensor.bytes > 4 * _MOST_FACTORS:
            raise ModelError(f"{self.model.file}: {name} is no table of rotary factors; download it again")
        file, gguf = next(
            (file, gguf) for file, gguf in self.model.files if any(each is tensor for each in gguf.tensors)
        )
        try:
            with file.open("rb") as opened:
                opened.seek(gguf.data + tensor.start)
                found = np.frombuffer(opened.read(tensor.bytes), "<f4")
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {error.strerror}") from None
        if len(found) != tensor.shape[0] or not np.isfinite(found).all() or (found <= 0).any():
            raise ModelError(f"{file}: {name} holds no rotary factors; download it again")
        return [float(each) for each in found]

    def error(self, key: str, why: str) -> ModelError:
        return ModelError(f"{self.model.file}: {key} is {str(self.model.values.get(key))[:60]}, which {why}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

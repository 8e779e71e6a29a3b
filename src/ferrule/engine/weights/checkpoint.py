"""The safetensors files of a model: what they hold, checked before anything is loaded, and slices of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from safetensors import SafetensorError, safe_open

from ferrule.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from ferrule.engine.weights.slicing import Slicing

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes per element of the dtypes that safetensors names (the safetensors format specification)."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint: where it is, its shape and dtype (safetensors' name for it)."""

    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        size = DTYPE_BYTES.get(self.dtype, 4)
        for length in self.shape:
            size *= length
        return size


class Checkpoint:
    """The tensors of a model directory, by key.

    Raises `ModelError` where there are no safetensors, the index is not what it should be, a file is missing or
    truncated, or a file lacks a tensor that the index promises.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tensors: Mapping[str, StoredTensor] = _scan(directory)
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()

    def read(self, key: str, cut: Slicing | None = None) -> list[Tensor]:
        """The parts of tensor ``key`` that ``cut`` names, in order (without its padding); the whole where it is None.

        Only the pages of those parts are read from disk.
        """
        stored = self.tensors[key]
        if stored.file not in self._open:
            self._open[stored.file] = _opened(stored.file, "pt")
        view = self._open[stored.file].get_slice(key)
        if cut is None:
            return [view[...] if stored.shape else self._open[stored.file].get_tensor(key)]
        before = (slice(None),) * cut.dim
        return [view[(*before, slice(start, stop))] for start, stop in cut.ranges]


def _opened(file: Path, framework: str) -> Any:
    try:
        return safe_open(file, framework=framework)
    except FileNotFoundError:
        raise ModelError(f"{file} is missing; download the model again") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file} ({file.stat().st_size:,} bytes) is truncated or damaged: {error}; download it again"
        ) from None


def _headers(file: Path) -> dict[str, StoredTensor]:
    opened = _opened(file, "np")  # only names and shapes are read here; torch is slow to import
    found = {}
    for key in opened.keys():  # noqa: SIM118 - not a mapping
        view = opened.get_slice(key)
        found[key] = StoredTensor(file, tuple(view.get_shape()), view.get_dtype())
    return found


def weight_file_names(directory: Path) -> list[str]:
    """The safetensors files that make up the model. Raises `ModelError` where there are none."""
    if (directory / INDEX).exists():
        return sorted(set(_weight_map(directory / INDEX).values()))
    if (directory / SINGLE).exists():
        return [SINGLE]
    others = sorted(directory.glob("*.safetensors"))
    if others:
        raise ModelError(f"{directory} holds {others[0].name} but neither {SINGLE} nor {INDEX}")
    raise ModelError(f"{directory} holds no safetensors weights ({SINGLE} or {INDEX})")


def _scan(directory: Path) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for name in weight_file_names(directory):
        found |= _headers(directory / name)
    if (directory / INDEX).exists():
        promised = _weight_map(directory / INDEX)
        missing = [key for key in promised if key not in found]
        if missing:
            raise ModelError(
                f"{directory / promised[missing[0]]} lacks {some(missing)}, which {INDEX} says it holds; "
                "download the model again"
            )
    return found


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        names = dict(weight_map)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ModelError(f"{index} is not a safetensors index: {error!r}; download it again") from None
    escaping = [name for name in names.values() if not isinstance(name, str) or Path(name).name != name]
    if escaping:
        raise ModelError(f"{index} names {escaping[0]!r}, which is not a file of its own directory")
    return names


def some(keys: Iterable[str], most: int = 3) -> str:
    """The first few of ``keys`` in words."""
    listed = sorted(keys)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more

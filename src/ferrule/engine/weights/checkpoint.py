"""The weight files of a model: what they hold, checked before anything is loaded, and slices of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ferrule.engine.weights.bits import RAW
from ferrule.engine.weights.formats import Weight, recognise
from ferrule.engine.weights.formats.on_load import already_packed, quantised_on_load
from ferrule.engine.weights.gguf.stored import GgufTensors
from ferrule.engine.weights.groups import rectangle, steps
from ferrule.errors import ModelError, PlanError
from ferrule.model.gguf import gguf_file
from ferrule.model.headers import (
    INDEX,
    SINGLE,
    NotDamagedError,
    Stored,
    header_length,
    parse_index,
    read_headers,
    read_json,
)
from ferrule.model.mtp import mtp_tensors, of_gguf

if TYPE_CHECKING:
    from torch import Tensor

    from ferrule.engine.weights.slicing import Slicing


class Checkpoint:
    """The weights of a model, a directory or a GGUF file, by key; a context manager that holds its files open.

    Raises `ModelError` where there are no weights, the index is not what it should be, a file is missing or
    truncated, a file lacks a tensor that the index promises, or a tensor has a dtype that is not run here.

    ``weights``: plain matrices are read as they are once quantised so (`formats.on_load`). Raises `ConfigError` where
    they are stored packed already. ``mtp``: those of the layer for multi-token prediction alone, as of a model of one
    layer (`ferrule.model.mtp`); raises `ModelError` where there is none.
    """

    def __init__(self, directory: Path, weights: str | None = None, *, mtp: bool = False) -> None:
        self.directory = directory
        self._files: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        self._mapped: dict[Path, tuple[NDArray[np.uint8], int]] = {}
        self.stored: dict[str, Stored]
        self.tensors: Mapping[str, Weight]
        gguf = gguf_file(directory)
        self.gguf = GgufTensors(gguf) if gguf is not None else None
        if self.gguf is not None:
            if mtp:
                raise ModelError(f"{directory}: {of_gguf()}")
            self.stored, self.tensors = self.gguf.stored, self.gguf.tensors
            if weights is not None:
                raise already_packed(weights, f"{gguf.name if gguf else directory}", "GGUF")
            return
        files = _scan(directory)
        self._files = {tensor.name: file for file, tensors in files.items() for tensor in tensors}
        self.stored = {tensor.name: tensor for tensors in files.values() for tensor in tensors}
        self.tensors = recognise(self.stored, _settings(directory), self)
        if mtp:
            self.tensors = mtp_tensors(self.tensors, str(directory))
        if weights is not None:
            self.tensors = quantised_on_load(self.tensors, weights, str(directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
        self._mapped.clear()
        if self.gguf is not None:
            self.gguf.close()

    def read(self, key: str, cut: Slicing | None = None) -> list[Tensor]:
        """The parts of weight ``key`` that ``cut`` names, as numbers, in order (without its padding); the whole where
        it is None. Raises `PlanError` for a cut that its format does not allow."""
        weight = self.tensors[key]
        check_border(weight, cut)
        return weight.format.read(weight, cut, self)

    def rows(self, key: str, cut: Slicing | None = None) -> Iterator[tuple[int, int, Tensor]]:
        """The same of a weight that is a matrix, all of its parts together, some rows at a time: where these begin and
        end, and their numbers."""
        weight = self.tensors[key]
        check_border(weight, cut)
        part = rectangle(weight.matrix, cut)
        for start, stop in steps(part):
            yield start, stop, weight.format.numbers(weight, part.some_rows(start, stop), self)

    def read_stored(self, key: str, cut: Slicing | None = None) -> list[Tensor]:
        """The same of a tensor as it is stored. Only the pages of those parts are read from disk."""
        file = self._files[key]
        if file not in self._open:
            self._open[file] = _opened(file)
        view = self._open[file].get_slice(key)
        if cut is None:
            return [view[...] if view.get_shape() else self._open[file].get_tensor(key)]
        before = (slice(None),) * cut.dim
        return [view[(*before, slice(start, stop))] for start, stop in cut.ranges]

    def array(self, key: str) -> NDArray[Any]:
        """See `StoredTensors.array`."""
        if self.gguf is not None:
            return self.gguf.array(key)
        file, tensor = self._files[key], self.stored[key]
        shape = tensor.shape
        if tensor.dtype == "F4":  # two in a byte
            shape = (*shape[:-1], shape[-1] // 2)
        if tensor.bytes == 0:
            return np.empty(shape, RAW[tensor.dtype])
        mapped, data = self._map(file)
        begin = data + tensor.start
        return mapped[begin : begin + tensor.bytes].view(RAW[tensor.dtype]).reshape(shape)

    def _map(self, file: Path) -> tuple[NDArray[np.uint8], int]:
        """The bytes of a safetensors file, mapped once, and where its tensors begin."""
        if file not in self._mapped:
            mapped = np.asarray(np.memmap(file, np.uint8, mode="r"))
            self._mapped[file] = mapped, 8 + header_length(mapped[:8].tobytes(), str(file), len(mapped))
        return self._mapped[file]


def check_border(weight: Weight, cut: Slicing | None) -> None:
    """Raise `PlanError` where ``cut`` goes through a group of numbers that are stored together."""
    if cut is None:
        return
    border = weight.format.border(weight, cut.dim)
    for place in (place for ends in cut.ranges for place in ends):
        if place % border and place != cut.of:
            raise PlanError(
                f"{weight.key} is stored in groups of {border} ({weight.format.name}), and this split cuts it at "
                f"{place} of {cut.of}; use fewer tensor parallel ranks"
            )


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError:
        raise _missing(file) from None
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from None


def _missing(file: Path) -> ModelError:
    return ModelError(f"{file} is missing; download the model again")


def _damaged(file: Path, error: Exception) -> ModelError:
    size = f"{file.stat().st_size:,} bytes"
    return ModelError(f"{file} ({size}) is truncated or damaged: {_reason(error, file)}; download it again")


def _reason(error: Exception, file: Path) -> str:
    """Text of ``error`` without the name of ``file`` and the cure, which are told already."""
    return str(error).removeprefix(str(file)).lstrip(": ").removesuffix("; download it again")


def weight_file_names(directory: Path) -> list[str]:
    """The safetensors files that make up the model. Raises `ModelError` where there are none."""
    if (directory / INDEX).exists():
        return sorted(set(_weight_map(directory / INDEX).values()))
    if (directory / SINGLE).exists():
        return [SINGLE]
    others = sorted(directory.glob("*.safetensors"))
    if others:
        raise ModelError(f"{directory} holds {others[0].name} but neither {SINGLE} nor {INDEX}")
    raise ModelError(f"{directory} holds no safetensors weights ({SINGLE} or {INDEX}); download the whole model")


def _scan(directory: Path) -> dict[Path, list[Stored]]:
    found: dict[Path, list[Stored]] = {}
    for name in weight_file_names(directory):
        file = directory / name
        if not file.exists():
            raise _missing(file)
        try:
            found[file] = read_headers(file)
        except NotDamagedError:
            raise
        except ModelError as error:
            raise _damaged(file, error) from None
    if (directory / INDEX).exists():
        promised = _weight_map(directory / INDEX)
        there = {tensor.name for tensors in found.values() for tensor in tensors}
        missing = [key for key in promised if key not in there]
        if missing:
            raise ModelError(
                f"{directory / promised[missing[0]]} lacks {some(missing)}, which {INDEX} says it holds; "
                "download the model again"
            )
    return found


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        return parse_index(read_json(index), str(index)).files
    except ModelError as error:
        raise ModelError(f"{index} is not a safetensors index: {_reason(error, index)}; download it again") from None


def _settings(directory: Path) -> Mapping[str, Any]:
    """Settings of the weights' format in config.json."""
    file = directory / "config.json"
    return quantization_of(read_json(file)) if file.exists() else {}


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the weights' format in a parsed config.json; empty where they are plain. MLX has a field of its own,
    without a ``quant_method``, and writes it into ``quantization_config`` too."""
    settings, mlx = (config.get(name) for name in ("quantization_config", "quantization"))
    if isinstance(settings, dict) and settings.get("quant_method"):
        return settings
    found = mlx if isinstance(mlx, dict) else settings
    if not isinstance(found, dict) or not found:
        return {}
    return {**found, "quant_method": "mlx"} if "bits" in found or "mode" in found else found


def some(keys: Iterable[str], most: int = 3) -> str:
    """The first few of ``keys`` in words."""
    listed = sorted(keys)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more

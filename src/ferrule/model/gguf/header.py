"""The header of a GGUF file: its key-values and its tensors' names, types, shapes and places; no tensor data is read.

Format: the GGUF specification, versions 2 and 3 (github.com/ggml-org/ggml, docs/gguf.md). Parsed here and not by the
``gguf`` library, whose reader makes an array of every token of the vocabulary, and trusts every count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from ferrule.errors import ModelError
from ferrule.model.gguf.cursor import Cursor
from ferrule.model.gguf.types import BLOCKS
from ferrule.model.headers import LFS_POINTER, Stored, check_fetched

MAGIC = b"GGUF"
ALIGNMENT = 32
"""Bytes, where ``general.alignment`` says nothing."""
_MOST_ALIGNMENT = 1 << 20
_MOST_COUNT = 1 << 17
"""Tensors or keys; the models with the most tensors, of one per expert, have some 50,000."""
_MOST_DIMENSIONS = 4
_BIG_ENDIAN = {2 << 24, 3 << 24}


@dataclass(frozen=True)
class Gguf:
    """``tensors``: shapes with the outermost dimension first (GGUF has it last), ``start`` counted from ``data``, the
    file's first byte that belongs to a tensor."""

    values: Mapping[str, Any]
    tensors: tuple[Stored, ...]
    data: int


def read_gguf(file: Path, *, arrays: bool = False) -> Gguf:
    """``arrays``: whether arrays as long as a vocabulary are wanted. Raises `ModelError` where ``file`` cannot be read,
    is damaged, or says what cannot be."""
    try:
        with file.open("rb") as opened:
            size = file.stat().st_size
            if size == 0:
                raise ModelError(f"{file} is empty; download it again")
            with mmap(opened.fileno(), 0, access=ACCESS_READ) as mapped:
                return parse_gguf(mapped, str(file), size, arrays=arrays)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}; download the model again") from None


def parse_gguf(data: bytes | mmap, name: str, size: int, *, arrays: bool = False) -> Gguf:
    """The header of the file ``name`` of ``size`` bytes, out of its first bytes ``data``. Raises `ModelError`."""
    cursor = Cursor(data, name, size, arrays=arrays)
    check_fetched(bytes(data[: len(LFS_POINTER)]), name)
    if cursor.bytes(4, "the magic number") != MAGIC:
        raise cursor.damaged("it does not begin with GGUF")
    version = cursor.number("<I", "the version")
    if version in _BIG_ENDIAN:
        raise ModelError(f"{name} is a big-endian GGUF file, which is not read here; get the little-endian one")
    if version not in (2, 3):
        raise cursor.damaged(f"its version is {version}, not 2 or 3")
    count, pairs = cursor.number("<Q", "the tensor count"), cursor.number("<Q", "the key count")
    if max(count, pairs) > _MOST_COUNT:
        raise cursor.damaged(f"it is said to hold {count:,} tensors and {pairs:,} keys")
    values: dict[str, Any] = {}
    for number in range(pairs):
        key = cursor.text(f"the name of key {number}")
        if key in values:
            raise cursor.damaged(f"it has the key {key} twice")
        values[key] = cursor.value(cursor.number("<I", key), key)
    alignment = _alignment(values, cursor)
    tensors: dict[str, Stored] = {}
    for number in range(count):
        tensor = _tensor(cursor, number, alignment)
        if tensor.name in tensors:
            raise cursor.damaged(f"it has the tensor {tensor.name} twice")
        tensors[tensor.name] = tensor
    start = -(-cursor.at // alignment) * alignment
    _check_places(list(tensors.values()), start, cursor)
    return Gguf(values, tuple(tensors.values()), start)


def _alignment(values: dict[str, Any], cursor: Cursor) -> int:
    found = values.get("general.alignment", ALIGNMENT)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 < found <= _MOST_ALIGNMENT or found & (found - 1):
        raise cursor.damaged(f"general.alignment is {str(found)[:40]}, which is no power of two")
    return found


def _tensor(cursor: Cursor, number: int, alignment: int) -> Stored:
    name = cursor.text(f"the name of tensor {number}")
    dimensions = cursor.number("<I", name)
    if dimensions > _MOST_DIMENSIONS:
        raise cursor.damaged(f"{name} is said to have {dimensions} dimensions")
    shape = tuple(cursor.number("<Q", name) for _ in range(dimensions))[::-1]
    kind, offset = cursor.number("<I", name), cursor.number("<Q", name)
    if kind not in BLOCKS:
        raise cursor.damaged(f"{name} has the type {kind}, which is not known")
    type_name, numbers, block = BLOCKS[kind]
    if 0 in shape or (shape[-1] if shape else 1) % numbers:
        raise cursor.damaged(f"{name} of shape {list(shape)} does not divide into {type_name}'s blocks of {numbers}")
    if offset % alignment:
        raise cursor.damaged(f"{name} begins at {offset:,}, which is no multiple of {alignment}")
    return Stored(name, type_name, shape, math.prod(shape) // numbers * block, offset)


def _check_places(tensors: list[Stored], start: int, cursor: Cursor) -> None:
    """Each tensor ends within the file, and before the next one begins."""
    end, last = 0, ""
    for each in sorted(tensors, key=lambda tensor: tensor.start):
        if each.start < end:
            raise cursor.damaged(f"{each.name} and {last} lie over each other")
        end, last = each.start + each.bytes, each.name
        if start + end > cursor.size:
            raise cursor.damaged(
                f"{each.name} of shape {list(each.shape)} ends beyond the file's {cursor.size:,} bytes"
            )

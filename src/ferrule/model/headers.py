"""Names, dtypes and shapes of stored tensors, out of the headers of safetensors files (8 bytes of length, then JSON).

Read without the safetensors library, which the base install lacks, and also from the first bytes of a remote file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ferrule.errors import ModelError
from ferrule.model.count import Counts
from ferrule.model.holding import Tensors
from ferrule.model.storage import Format, is_scale

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100_000_000
"""Bytes; the limit of the format's own library."""
MAX_JSON = 64 << 20
"""Bytes of a config or an index; the largest published index has about 10 MB."""

DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
"""Bits per element of the dtypes that the safetensors format names."""
NUMBERS = frozenset({"F64", "F32", "F16", "BF16"})
"""Those in which weights are that are not packed."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a file. ``bytes`` of its data, ``start``: its first one, behind the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    start: int = 0


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=16)]
    data_offsets: tuple[_Count, _Count]


class NotDamagedError(ModelError):
    """A file is what its makers wrote, but it cannot be used; a download would give the same."""


class UnknownDtypeError(NotDamagedError):
    """A tensor has a dtype that is not in `DTYPE_BITS`: the file is newer than this program."""


LFS_POINTER = b"version https://git-lfs"
"""Beginning of the small text that Git leaves in the place of a large file which it has not fetched."""


def check_fetched(start: bytes, file: str) -> None:
    """Raises `NotDamagedError` where the first bytes ``start`` of ``file`` are those of a pointer of Git LFS."""
    if len(start) >= 8 and LFS_POINTER.startswith(start[: len(LFS_POINTER)]):
        raise NotDamagedError(f"{file} is only a pointer of Git LFS; fetch the file itself: git lfs pull")


def header_length(start: bytes, file: str, file_bytes: int | None = None) -> int:
    """The length of the header that follows the first 8 bytes ``start`` of ``file``."""
    if len(start) < 8:
        raise ModelError(f"{file} has only {len(start)} bytes; download it again")
    check_fetched(start, file)
    (length,) = struct.unpack("<Q", start[:8])
    if not 2 <= length <= min(MAX_HEADER, (file_bytes or MAX_HEADER + 8) - 8):
        raise ModelError(f"{file} says that its header has {length:,} bytes; it is damaged or no safetensors file")
    return int(length)


def parse_header(text: bytes, file: str, data_bytes: int | None = None) -> list[Stored]:
    """The tensors that a header tells of, each checked: its dtype, its shape, and that both give its length.

    ``data_bytes``: how many bytes follow the header, where that is known. Raises `ModelError`, and of these
    `UnknownDtypeError` where the file may be well.
    """
    found = []
    for name, value in parse_json(text, file).items():
        if name == "__metadata__":
            continue
        try:
            entry = msgspec.convert(value, _Entry)
        except msgspec.ValidationError as error:
            raise ModelError(f"{file}: the header's entry {name!r} is damaged ({error}); download it again") from None
        if entry.dtype not in DTYPE_BITS:
            raise UnknownDtypeError(
                f"{file}: {name} has the dtype {entry.dtype!r}, which is not known here; use weights in "
                "bfloat16, float16 or float32, or a newer Ferrule"
            )
        size = -(-math.prod(entry.shape) * DTYPE_BITS[entry.dtype] // 8)
        shape, (start, end) = list(entry.shape), entry.data_offsets
        if end - start != size or (data_bytes is not None and end > data_bytes):
            raise ModelError(
                f"{file}: {name} of shape {shape} needs {size:,} bytes at {[start, end]}, which do not fit"
            )
        found.append(Stored(name, entry.dtype, entry.shape, size, start))
    return found


def parse_json(text: bytes | str, file: str) -> dict[str, Any]:
    """A JSON object from ``text``; ``file`` names it in errors. Raises `ModelError` where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is no JSON: {error}; download it again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file} holds no JSON object but {type(value).__name__}; download it again")
    return value


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from ``file``. Raises `ModelError` where it is none, or larger than such files are."""
    try:
        if file.stat().st_size > MAX_JSON:
            raise ModelError(f"{file} has {file.stat().st_size:,} bytes, far more than such a file needs")
        return parse_json(file.read_bytes(), str(file))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None


def read_headers(file: Path) -> list[Stored]:
    """The tensors of one safetensors file. Raises `ModelError` where it is missing, truncated or damaged."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = header_length(opened.read(8), str(file), size)
            return parse_header(opened.read(length), str(file), size - 8 - length)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}; download the model again") from None


@dataclass(frozen=True)
class Index:
    """Contents of ``model.safetensors.index.json``: the tensors' names and files, and all their bytes if it says so."""

    files: Mapping[str, str]
    total_bytes: int | None


def index_of(tensors: Sequence[Stored]) -> Index:
    """Index of the tensors of one file, as an index file would give it."""
    return Index({tensor.name: SINGLE for tensor in tensors}, sum(tensor.bytes for tensor in tensors))


def parse_index(value: Mapping[str, Any], file: str) -> Index:
    """Raises `ModelError` where ``value`` is no index."""
    names, metadata = value.get("weight_map"), value.get("metadata")
    if not isinstance(names, dict) or not names or not all(isinstance(each, str) for each in names.values()):
        raise ModelError(f"{file}: weight_map is no table of tensors' names and files; download it again")
    escaping = next((each for each in names.values() if Path(each).name != each), None)
    if escaping is not None:
        raise ModelError(f"{file}: weight_map names {escaping!r}, which is not a file of its own directory")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is not None and (not isinstance(total, int | float) or isinstance(total, bool) or not 0 < total < 1 << 50):
        raise ModelError(f"{file}: metadata.total_size is {total!r}, which is no size of a model")
    return Index(names, None if total is None else int(total))


def counts(stored: Stored, storage: Format) -> Counts:
    """Number of the model's parameters that ``stored`` holds: scales have none, packed integers several each."""
    elements = math.prod(stored.shape)
    if is_scale(stored.name):
        return Counts(stored.name, 0, stored.bytes)
    packed = stored.dtype in ("I32", "U32", "U8", "F4")  # integers that hold several numbers each
    if packed and storage.bits and (bits := storage.bits_of(stored.name)):
        elements = round(stored.bytes * 8 / bits)
    flat = storage.flat and stored.shape[1:] == (1,)  # codes that are called numbers
    plain = not storage.bits or (stored.dtype in NUMBERS and not flat)
    return Counts(stored.name, elements, stored.bytes, Tensors(stored.shape) if plain else None)

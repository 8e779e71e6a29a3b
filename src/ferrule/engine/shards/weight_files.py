"""A model's files as bytes: where each tensor lies, what is copied whole, and which model it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from ferrule.engine.shards.pieces import Piece, View, view_of
from ferrule.engine.weights.checkpoint import weight_file_names
from ferrule.engine.weights.gguf.names import IGNORED
from ferrule.engine.weights.gguf.weight import byte_shape
from ferrule.errors import ModelError
from ferrule.model.gguf import SUFFIX, gguf_file, parse_gguf, read_gguf_model
from ferrule.model.headers import DTYPE_BITS, Stored, header_length, parse_header

SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
SMALL_LIMIT = 64 << 20
"""Bytes; a larger file is no configuration or tokenizer."""
STATE = ".quant_state."
STATE_LIMIT = 4096
"""Bytes of a tensor that tells how another is stored; it has about a hundred."""
TABLE_LIMIT = 1 << 16
"""Bytes of a tensor that belongs to a GGUF file's configuration; rotary factors are some hundred numbers."""
SAMPLES = 2048
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class WeightFile:
    """A safetensors or GGUF file: its name and size, and its first bytes, up to where the tensors begin. ``states``:
    whole tensors that tell more than numbers, by key: how others are stored (bitsandbytes' quant_state has a weight's
    shape), or what belongs to a GGUF file's configuration (rotary factors)."""

    name: str
    size: int
    head: bytes
    states: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Place of a tensor: its file, the offset of its first byte, its shape, and the bytes of an element (of a GGUF
    file's tensor: one, in the shape of `byte_shape`)."""

    file: str
    offset: int
    shape: tuple[int, ...]
    item: int

    def view(self, dim: int) -> View:
        return view_of(self.shape, self.item, dim)

    @property
    def bytes(self) -> int:
        return self.view(0).length


@dataclass(frozen=True)
class Layout:
    """Parts of a model that are copied whole to a host that lacks it; the tensors' places follow from it."""

    small: Mapping[str, bytes]
    files: tuple[WeightFile, ...]

    def places(self) -> dict[str, Place]:
        """By key. Raises `ModelError` where a header is damaged."""
        found = {}
        for file in self.files:
            if file.name.endswith(SUFFIX):
                gguf = parse_gguf(file.head, file.name, file.size)
                for tensor in gguf.tensors:
                    found[tensor.name] = Place(file.name, gguf.data + tensor.start, byte_shape(tensor), 1)
                continue
            data = len(file.head)
            for tensor in parse_header(file.head[8:], file.name, file.size - data):
                item, rest = divmod(DTYPE_BITS[tensor.dtype], 8)
                if rest:
                    raise ModelError(
                        f"{file.name}: {tensor.name} has the dtype {tensor.dtype!r}, which is not run here"
                    )
                found[tensor.name] = Place(file.name, data + tensor.start, tensor.shape, item)
        return found

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, packed: bytes) -> Layout:
        """Raises `ModelError` for what `pack` did not make, or a file that leads out of a model's directory."""
        try:
            layout = msgspec.msgpack.decode(packed, type=cls)
        except msgspec.DecodeError as error:
            raise ModelError(f"what a rank sent of the model's configuration cannot be read: {error}") from None
        for name in (*layout.small, *(file.name for file in layout.files)):
            if Path(name).name != name or name.startswith("."):
                raise ModelError(f"a rank sent the file name {name!r}, which leads out of a model's directory")
        for file in layout.files:
            places = replace(layout, files=(file,)).places() if file.states else {}
            for key, data in file.states.items():
                if key not in places or len(data) != places[key].bytes:
                    raise ModelError(f"a rank sent {len(data)} bytes for tensor {key!r}, which {file.name} has not")
        return layout


def read_layout(directory: Path) -> Layout:
    """Raises `ModelError` where the directory lacks a file or one is damaged."""
    gguf = gguf_file(directory)
    if gguf is not None:
        return _gguf_layout(gguf)
    try:
        small = {
            file.name: file.read_bytes()
            for pattern in SMALL_FILES
            for file in sorted(directory.glob(pattern))
            if file.is_file() and file.stat().st_size <= SMALL_LIMIT
        }
        if "config.json" not in small:
            raise ModelError(f"{directory} holds no config.json")
        files = []
        for name in weight_file_names(directory):
            size = (directory / name).stat().st_size
            with (directory / name).open("rb") as opened:
                start = opened.read(8)
                text = opened.read(header_length(start, name, size))
                states = _states(opened, name, text) if STATE in text.decode(errors="replace") else {}
            files.append(WeightFile(name, size, start + text, states))
    except OSError as error:
        raise ModelError(f"{error.filename or directory} cannot be read: {error.strerror}") from None
    return Layout(small, tuple(files))


def _states(opened: BinaryIO, name: str, header: bytes) -> dict[str, bytes]:
    """The tensors of an open safetensors file that tell how others are stored; ``header``: its own, without the
    length."""
    return {
        tensor.name: _whole(opened, name, tensor, 8 + len(header))
        for tensor in parse_header(header, name)
        if STATE in tensor.name and tensor.bytes <= STATE_LIMIT
    }


def _gguf_layout(file: Path) -> Layout:
    """All that a GGUF model says of itself is in its files."""
    files = []
    try:
        for part, gguf in read_gguf_model(file).files:
            with part.open("rb") as opened:
                head = opened.read(gguf.data)
                tables = {
                    tensor.name: _whole(opened, part.name, tensor, gguf.data)
                    for tensor in gguf.tensors
                    if IGNORED.search(tensor.name) and tensor.bytes <= TABLE_LIMIT
                }
            files.append(WeightFile(part.name, part.stat().st_size, head, tables))
    except OSError as error:
        raise ModelError(f"{error.filename or file} cannot be read: {error.strerror}") from None
    return Layout({}, tuple(files))


def _whole(opened: BinaryIO, name: str, tensor: Stored, data: int) -> bytes:
    """The bytes of a tensor of an open file, whose tensors begin at ``data``."""
    opened.seek(data + tensor.start)
    found = opened.read(tensor.bytes)
    if len(found) < tensor.bytes:
        raise ModelError(f"{name} ends within {tensor.name}; it was truncated")
    return found


def identity(directory: Path, layout: Layout) -> str:
    """A digest that tells models apart: configuration, names, sizes and headers of the files, and a sample of what the
    tensors hold (two models trained from one have the same shapes). Reads at most 8 MiB of weights."""
    hashed = hashlib.blake2b(b"ferrule model 1", digest_size=16)
    hashed.update(layout.small.get("config.json", b""))
    for file in layout.files:
        hashed.update(f"{file.name} {file.size} {len(file.head)} ".encode())
        hashed.update(file.head)
        for data in file.states.values():
            hashed.update(data)
    places = layout.places()
    chosen = sorted(places, key=lambda key: hashlib.blake2b(key.encode(), digest_size=8).digest())[:SAMPLES]
    with Reader(directory, places) as reader:
        for key in sorted(chosen):
            whole = places[key].bytes
            start = max(0, (whole - SAMPLE_BYTES) // 2)
            hashed.update(reader.read(Piece(key, 0, 0, 1, start, min(whole, start + SAMPLE_BYTES))))
    return hashed.hexdigest()


class Reader:
    """Reads pieces out of the files of a directory, or of a GGUF file and its other parts."""

    def __init__(self, directory: Path, places: Mapping[str, Place]) -> None:
        self.directory, self.places = directory if directory.is_dir() else directory.parent, places
        self._open: dict[str, int] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def read(self, piece: Piece) -> bytearray:
        """Raises `ModelError` where the file ends early or cannot be read."""
        place = self.places[piece.key]
        view = place.view(piece.dim)
        found, at = bytearray(piece.bytes(view)), 0
        try:
            if place.file not in self._open:
                self._open[place.file] = os.open(self.directory / place.file, os.O_RDONLY)
            for offset, length in piece.runs(view):
                end = at + length
                while at < end:
                    part = os.pread(self._open[place.file], end - at, place.offset + offset + length - (end - at))
                    if not part:
                        raise ModelError(f"{self.directory / place.file} ends within {piece.key}; it was truncated")
                    found[at : at + len(part)] = part
                    at += len(part)
        except OSError as error:
            raise ModelError(f"{self.directory / place.file} cannot be read: {error.strerror}") from None
        return found

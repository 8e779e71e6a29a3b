"""A model directory's files as bytes: where each tensor lies, what is copied whole, and which model it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ferrule.engine.shards.pieces import Piece, View, view_of
from ferrule.engine.weights.checkpoint import weight_file_names
from ferrule.errors import ModelError
from ferrule.model.headers import DTYPE_BITS, header_length, parse_header

SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
SMALL_LIMIT = 64 << 20
"""Bytes; a larger file is no configuration or tokenizer."""
SAMPLES = 2048
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class WeightFile:
    """A safetensors file: its name and size, and its first bytes, up to where the tensors begin."""

    name: str
    size: int
    head: bytes


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: its file, the offset of its first byte, its shape, and the bytes of an element."""

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
    """What of a model is copied whole to a host that lacks it; the tensors' places follow from it."""

    small: Mapping[str, bytes]
    files: tuple[WeightFile, ...]

    def places(self) -> dict[str, Place]:
        """By key. Raises `ModelError` where a header is damaged."""
        found = {}
        for file in self.files:
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
        return layout


def read_layout(directory: Path) -> Layout:
    """Raises `ModelError` where the directory lacks a file or one is damaged."""
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
            files.append(WeightFile(name, size, start + text))
    except OSError as error:
        raise ModelError(f"{error.filename or directory} cannot be read: {error.strerror}") from None
    return Layout(small, tuple(files))


def identity(directory: Path, layout: Layout) -> str:
    """A digest that tells models apart: configuration, names, sizes and headers of the files, and a sample of what the
    tensors hold (two models trained from one have the same shapes). Reads at most 8 MiB of weights."""
    hashed = hashlib.blake2b(b"ferrule model 1", digest_size=16)
    hashed.update(layout.small["config.json"])
    for file in layout.files:
        hashed.update(f"{file.name} {file.size} {len(file.head)} ".encode())
        hashed.update(file.head)
    places = layout.places()
    chosen = sorted(places, key=lambda key: hashlib.blake2b(key.encode(), digest_size=8).digest())[:SAMPLES]
    with Reader(directory, places) as reader:
        for key in sorted(chosen):
            whole = places[key].bytes
            start = max(0, (whole - SAMPLE_BYTES) // 2)
            hashed.update(reader.read(Piece(key, 0, 0, 1, start, min(whole, start + SAMPLE_BYTES))))
    return hashed.hexdigest()


class Reader:
    """Reads pieces out of a directory's files."""

    def __init__(self, directory: Path, places: Mapping[str, Place]) -> None:
        self.directory, self.places = directory, places
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

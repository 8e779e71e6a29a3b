"""The GGUF files of a model: found by a file or a directory, parts of a split one put together."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ferrule.errors import ModelError
from ferrule.model.gguf.header import Gguf, read_gguf
from ferrule.model.headers import Stored

SUFFIX = ".gguf"
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_MOST_PARTS = 1000
_SETTLED_SECONDS = 2.0
"""After which a file's next change has another time, on any file system."""


@dataclass(frozen=True)
class GgufModel:
    """``files``: in order, with their headers. ``values``: those of the first file, which has the model's."""

    files: tuple[tuple[Path, Gguf], ...]

    @property
    def file(self) -> Path:
        return self.files[0][0]

    @property
    def name(self) -> str:
        return name_of(self.file)

    @property
    def values(self) -> Mapping[str, Any]:
        return self.files[0][1].values

    @property
    def tensors(self) -> tuple[Stored, ...]:
        return tuple(tensor for _, gguf in self.files for tensor in gguf.tensors)

    @property
    def types(self) -> tuple[str, ...]:
        """The types of its tensors, most bytes first."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.bytes
        return tuple(sorted(sizes, key=lambda each: -sizes[each]))


def name_of(file: Path) -> str:
    """Name of the model of GGUF file ``file``: without the suffix and the number of its part."""
    return _PART.sub("", file.name.removesuffix(SUFFIX))


def model_name(model: Path) -> str:
    """Name of a model that was given none: as its directory or its GGUF file."""
    return model.resolve().name if model.is_dir() else name_of(model)


def full_path(model: Path) -> Path:
    """Path ``model`` from the root on. A GGUF file stays where it is: a link's target may lack suffix and parts."""
    return model.resolve() if model.is_dir() else model.absolute()


def gguf_file(path: Path) -> Path | None:
    """The (first) GGUF file of the model that ``path`` is: the file itself, or what a directory without config.json
    holds. None for a model in another form. Raises `ModelError` where a directory holds several models."""
    if path.suffix == SUFFIX and not path.is_dir():
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found: dict[str, Path] = {}
    for file in sorted(path.glob(f"*{SUFFIX}")):
        if not file.name.startswith("mmproj"):  # what sees, beside a language model
            found.setdefault(name_of(file), file)
    if len(found) > 1:
        listed = ", ".join(file.name for file in list(found.values())[:4])
        raise ModelError(f"{path} holds {len(found)} GGUF models ({listed}); give the file of one of them")
    return next(iter(found.values()), None)


def read_gguf_model(file: Path, *, arrays: bool = False) -> GgufModel:
    """``file`` and, of a split model, all other parts, which lie beside it. ``arrays``: see `read_gguf`.

    Raises `ModelError` where ``file`` is not the first part, or a part is missing, damaged or of another model.
    """
    first = read_gguf(file, arrays=True) if arrays else _header(file)
    count = first.values.get("split.count", 0)
    if not isinstance(count, int) or not 0 <= count <= _MOST_PARTS:
        raise ModelError(f"{file}: split.count is {str(count)[:40]}, which is no count of parts; download it again")
    if count <= 1:
        return GgufModel(((file, first),))
    files = [(file, first)]
    for number, other in enumerate(_parts(file, count)):
        if number:
            files.append((other, _header(other)))
        there = files[number][1].values
        if there.get("split.no", number) != number or there.get("split.count", count) != count:
            raise ModelError(f"{other} is not part {number + 1} of {count}, as its name says; download it again")
    model = GgufModel(tuple(files))
    total, found = first.values.get("split.tensors.count"), len(model.tensors)
    if total is not None and total != found:
        raise ModelError(f"{file} and its {count - 1} other parts hold {found} tensors, not {total}; download it again")
    if len({tensor.name for tensor in model.tensors}) != found:
        raise ModelError(f"{file} and its other parts hold a tensor twice; download it again")
    return model


def _header(file: Path) -> Gguf:
    """As `read_gguf`, but the same file is read once by a process: configuration, sizes, weights and defaults all ask
    for it, and passing over a vocabulary of 150,000 takes 40 ms. A file that was just written is read each time."""
    try:
        told = file.stat()
    except OSError:
        return read_gguf(file)  # which says why
    if time.time() - told.st_mtime < _SETTLED_SECONDS:
        return read_gguf(file)
    return _kept_header(file, (told.st_ino, told.st_size, told.st_mtime_ns))


@lru_cache(maxsize=_MOST_PARTS)
def _kept_header(file: Path, version: tuple[int, int, int]) -> Gguf:
    """``version``: of the file, by which it is told from what it was before."""
    return read_gguf(file)


def _parts(file: Path, count: int) -> list[Path]:
    """The files of a split GGUF: ``name-00001-of-00003.gguf`` and so on."""
    stem, named = file.name.removesuffix(SUFFIX), _PART.search(file.name.removesuffix(SUFFIX))
    if named is None or int(named[1]) != 1 or int(named[2]) != count:
        first = f"-00001-of-{count:05d}{SUFFIX}"
        raise ModelError(f"{file} is one of {count} parts; give the first, whose name ends in {first}")
    stem = stem[: named.start()]
    return [file.with_name(f"{stem}-{number:05d}-of-{count:05d}{SUFFIX}") for number in range(1, count + 1)]

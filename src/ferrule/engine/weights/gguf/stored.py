"""The tensors of a GGUF model as they lie in its files, which are mapped into memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.formats.format import Weight
from ferrule.engine.weights.gguf.weights import weights_of
from ferrule.errors import ModelError
from ferrule.model.gguf import gguf_config, read_gguf_model


class GgufTensors:
    """``stored``: by GGUF's names; ``tensors``: the weights by transformers'. Raises `ModelError` where a file is
    missing or damaged, or holds what is not run here."""

    def __init__(self, file: Path) -> None:
        model = read_gguf_model(file)
        self.stored = {tensor.name: tensor for tensor in model.tensors}
        self.tensors: Mapping[str, Weight] = weights_of(self.stored, gguf_config(model), str(file))
        self._places = {
            tensor.name: (part, gguf.data + tensor.start) for part, gguf in model.files for tensor in gguf.tensors
        }
        self._mapped: dict[Path, NDArray[np.uint8]] = {}

    def array(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a stored tensor: a read-only view of the mapped file. Only the pages that are used are read."""
        file, start = self._places[name]
        if file not in self._mapped:
            try:
                self._mapped[file] = np.asarray(np.memmap(file, np.uint8, mode="r"))
            except (OSError, ValueError) as error:
                raise ModelError(f"{file} cannot be read: {error}; download the model again") from None
        found = self._mapped[file][start : start + self.stored[name].bytes]
        if len(found) != self.stored[name].bytes:
            raise ModelError(f"{file} ends within {name}; it was truncated: download it again")
        return found

    def close(self) -> None:
        self._mapped.clear()

"""A toy weight format: int8 codes with a scale for each group of inputs, as ``X.weight`` and ``X.weight_scale``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ferrule.engine.weights.formats import StoredTensors, Weight
from ferrule.engine.weights.formats.packed import Packed
from ferrule.engine.weights.groups import Rectangle
from ferrule.engine.weights.slicing import Slicing
from ferrule.model.headers import Stored
from ferrule.staging import Uploads

SCALE = "_scale"


class PackedHalved(Packed):
    def __init__(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
        self.codes, self.scales, self.dtype = codes, scales, dtype
        self.shape, self.device = codes.shape, codes.device
        self.bytes = codes.nbytes + scales.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        """Group by group: the numbers are never there as a whole."""
        y = torch.zeros(*x.shape[:-1], self.shape[0], dtype=torch.float32)
        group = self.shape[1] // self.scales.shape[1]
        for index in range(self.scales.shape[1]):
            some = slice(index * group, (index + 1) * group)
            y += (x[..., some].float() @ self.codes[:, some].float().T) * self.scales[:, index]
        return y.to(self.dtype)


class Halved:
    """`Format`."""

    name = "halved"
    methods = frozenset({"halved"})

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        return [
            Weight(key, tensor.shape, self, {"codes": tensor, "scales": stored[key + SCALE]})
            for key, tensor in stored.items()
            if key + SCALE in stored
        ]

    def border(self, weight: Weight, dim: int) -> int:
        return weight.shape[1] // weight.parts["scales"].shape[1] if dim == 1 else 1

    def read(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> list[Tensor]:
        return [
            (codes.float().unflatten(1, (scales.shape[1], -1)) * scales.unsqueeze(2)).flatten(1)
            for codes, scales in zip(*self._parts(weight, cut, source), strict=True)
        ]

    def numbers(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> Tensor:
        (whole,) = self.read(weight, None, source)
        rows = torch.cat([whole[start:stop] for start, stop in part.rows])
        return torch.cat([rows[:, start:stop] for start, stop in part.columns], 1)

    def pack(
        self, weight: Weight, cut: Slicing | None, source: StoredTensors, dtype: torch.dtype, uploads: Uploads
    ) -> Packed:
        dim = 0 if cut is None else cut.dim
        codes, scales = (torch.cat(parts, dim=dim).to(uploads.device) for parts in self._parts(weight, cut, source))
        return PackedHalved(codes, scales, dtype)

    def _parts(self, weight: Weight, cut: Slicing | None, source: StoredTensors) -> tuple[list[Tensor], list[Tensor]]:
        of_scales = cut
        if cut is not None and cut.dim == 1:
            group = self.border(weight, 1)
            ranges = tuple((start // group, stop // group) for start, stop in cut.ranges)
            of_scales = Slicing(1, cut.of // group, ranges)
        return source.read_stored(weight.key, cut), source.read_stored(weight.key + SCALE, of_scales)


def halve(directory: Path, group: int) -> None:
    """Rewrite the model of ``directory`` with its layers' matrices halved; ``directory``-plain gets their numbers."""
    tensors = load_file(directory / "model.safetensors")
    plain = dict(tensors)
    for key, tensor in list(tensors.items()):
        if ".layers." not in key or tensor.dim() != 2:
            continue
        groups = tensor.unflatten(1, (-1, group))
        scales = groups.abs().amax(dim=2) / 127
        codes = (groups / scales.unsqueeze(2)).round().to(torch.int8)
        tensors[key], tensors[key + SCALE] = codes.flatten(1), scales
        plain[key] = (codes.float() * scales.unsqueeze(2)).flatten(1)
    reference = directory.with_name(f"{directory.name}-plain")
    reference.mkdir()
    (reference / "config.json").write_bytes((directory / "config.json").read_bytes())
    save_file(plain, reference / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

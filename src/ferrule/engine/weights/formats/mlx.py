"""Weights as MLX packs them (`mlx.core.quantize`): affine groups, and the microscaling floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ferrule.engine.weights.bits import float32_of, joined, pick, unpack_range
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import Axes, GroupedFormat, GroupedWeight, split_groups
from ferrule.engine.weights.formats.parts import SCALES, check_shape, find, matrix_of, misfit, modules, numbers
from ferrule.engine.weights.formats.parts import whole_number as whole
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
from ferrule.errors import ModelError
from ferrule.model.headers import Stored
from ferrule.model.packing import GroupLayout

AFFINE_BITS = (2, 3, 4, 5, 6, 8)
FLOATS = {
    "mxfp4": GroupLayout(4, 32, "e8m0", "fp4"),
    "nvfp4": GroupLayout(4, 16, "f16", "fp4"),  # f16 holds every E4M3
    "mxfp8": GroupLayout(8, 32, "e8m0", "e4m3"),
}
STACK = "switch_mlp"
"""The module of mlx-lm that holds the experts of a layer in stacks, one for each projection."""
EXPERT_NAMES = {"block_sparse_moe": {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}}
"""Names that mlx-lm changes: names in the model's own checkpoints, by the module of the experts."""


class Mlx(GroupedFormat):
    """Of a module: ``weight`` (outputs, inputs * bits / 32), uint32, codes end to end from the lowest bit on;
    ``scales`` (outputs, groups), and ``biases`` of the same shape in the affine mode. Embedding and head are packed in
    the same way, and experts are stacked. Bits and group are told by config.json, which may name modules with others.
    """

    name = "mlx"
    methods = frozenset({"mlx"})
    axes: ClassVar[Axes] = {"weight": (0, 1), "scales": (0, None), "biases": (0, None)}

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        found: list[Weight] = []
        for module in modules(stored, "scales"):
            codes = stored.get(f"{module}.weight")
            if codes is not None and codes.dtype == "U32":
                found += self._weights(module, codes, stored, settings)
        bare = [each.name for each in stored.values() if each.dtype == "U32" and each.name.endswith(".weight")]
        packed = {weight.parts["weight"].name for weight in found}
        for name in bare:
            if name not in packed:
                find(stored, f"{name.removesuffix('weight')}scales", name)
        return found

    def _weights(
        self, module: str, codes: Stored, stored: Mapping[str, Stored], settings: Mapping[str, Any]
    ) -> Iterator[Weight]:
        mode, bits, group = _told(module, settings)
        if mode == "affine":
            scales = find(stored, f"{module}.scales", codes.name, "F16", "BF16", "F32")
            layout = GroupLayout(bits, group, SCALES[scales.dtype], offsets=True)
            biases = find(stored, f"{module}.biases", codes.name, "F16", "BF16", "F32")
            parts = {"weight": codes, "scales": scales, "biases": check_shape(biases, scales.shape)}
        else:
            scales, layout = find(stored, f"{module}.scales", codes.name, "U8"), FLOATS[mode]
            parts = {"weight": codes, "scales": scales}
        if not 2 <= len(scales.shape) <= 3:
            raise misfit(scales, "2 or 3 dimensions")
        *before, rows, groups = scales.shape
        columns = groups * layout.group
        check_shape(codes, (*before, rows, columns * layout.bits // 32))
        key = f"{module}.weight"
        above, _, leaf = module.rpartition(".")
        if before and above.endswith(STACK):
            holder = above.removesuffix(f".{STACK}")
            name = EXPERT_NAMES.get(holder.rpartition(".")[2], {}).get(leaf, leaf)
            (count,) = before
            for place in range(count):
                expert = f"{holder}.experts.{place}.{name}.weight"
                yield GroupedWeight(expert, (rows, columns), self, parts, layout=layout, place=place, stack=count)
        else:
            yield GroupedWeight(key, (*before, rows, columns), self, parts, layout=layout)

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        layout = self.layout(weight)
        words = pick(matrix_of(weight, "weight", source, index), part.rows, 0)
        codes = joined([unpack_range(words, layout.bits, span) for span in part.columns], 1)
        read = {}
        for role in ("scales", "biases"):
            if role in weight.parts:
                array = pick(matrix_of(weight, role, source, index), part.rows, 0)
                is_e4m3 = layout.values == "fp4" and layout.scale == "f16"
                values = float32_of(np.asarray(array), "F8_E4M3") if is_e4m3 else numbers(array, weight.parts[role])
                read[role], size = split_groups(values, layout.group, part.columns)
        return GroupedMatrix(replace(layout, group=size), codes, read["scales"], read.get("biases"))


def _told(module: str, settings: Mapping[str, Any]) -> tuple[str, int, int]:
    """Mode, bits and group of ``module``. Raises `ModelError` where MLX has none such."""
    special = settings.get(module)
    told = {**settings, **special} if isinstance(special, Mapping) else settings
    mode = told.get("mode", "affine")
    if isinstance(mode, str) and mode in FLOATS:
        return mode, FLOATS[mode].bits, FLOATS[mode].group
    bits, group = whole(told, "bits", where="quantization"), whole(told, "group_size", 64, "quantization")
    if mode != "affine" or bits not in AFFINE_BITS or group not in (32, 64, 128):
        raise ModelError(
            f"{module} is packed by MLX in mode {mode!r} with {bits} bits in groups of {group}, which is not run here; "
            "use its weights with 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, or its bfloat16 weights"
        )
    return mode, bits, group

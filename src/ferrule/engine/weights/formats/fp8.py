"""FP8 as DeepSeek, Qwen and transformers store it: numbers of 8 bits, and a scale for each block or tensor; and experts
in FP4 beside it, as of DeepSeek-V4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ferrule.engine.weights.bits import joined, pick, unpack_range
from ferrule.engine.weights.formats.blocks import FLOAT8, Block, block_of, byte_groups
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import Axes, GroupedFormat, GroupedWeight, split_groups
from ferrule.engine.weights.formats.parts import SCALES, beside, check_shape, find, matrix_of, misfit, modules, numbers
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
from ferrule.errors import ModelError
from ferrule.model.headers import Stored
from ferrule.model.packing import GroupLayout

GROUP = 32
"""Numbers of FP4 in a row that share a scale."""
SCALE_NAMES = ("weight_scale_inv", "weight_scale", "scale")


class Fp8(GroupedFormat):
    """Of a module: ``weight`` (outputs, inputs), E4M3 or E5M2; ``weight_scale_inv``, by which it is multiplied despite
    its name: for each block of ``weight_block_size``, or one. Scales of a byte are powers of two (E8M0). FP4 (E2M1):
    ``weight`` (outputs, inputs / 2), signed bytes of two codes, the first in the lower bits, and a scale for each
    `GROUP` of a row, as transformers' ``Fp8Dequantize`` reads them."""

    name = "fp8"
    methods = frozenset({"fp8"})
    axes: ClassVar[Axes] = {"weight": (0, 1), "packed": (0, 1), "exponents": (0, 1)}

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        if settings.get("quant_method") == "compressed-tensors":
            return []
        told = _block_size(settings)
        found: list[Weight] = []
        for module in modules(stored, "weight"):
            codes = stored[f"{module}.weight"]
            if len(codes.shape) not in (2, 3):
                continue
            names = [name for each in SCALE_NAMES if (name := f"{module}.{each}") in stored]
            if codes.dtype in FLOAT8 and (names or told):
                found.append(self._weight(module, codes, names[:1], stored, told))
            elif codes.dtype == "I8" and names:
                found.append(self._packed(module, codes, names[0], stored))
        return found

    def _weight(
        self, module: str, codes: Stored, names: list[str], stored: Mapping[str, Stored], told: Block | None
    ) -> Weight:
        name = names[0] if names else f"{module}.{SCALE_NAMES[0]}"
        scale = find(stored, name, codes.name, "F32", "BF16", "F16", "F8_E8M0", "U8")
        block = block_of(codes.shape, scale, told)
        layout = GroupLayout(8, block[1], SCALES[scale.dtype], "e4m3" if codes.dtype == "F8_E4M3" else "e5m2")
        parts = {"weight": codes, "scale": scale, **beside(stored, module, "input_scale", "activation_scale")}
        return GroupedWeight(f"{module}.weight", codes.shape, self, parts, layout=layout, block_rows=block[0])

    def _packed(self, module: str, codes: Stored, name: str, stored: Mapping[str, Stored]) -> Weight:
        scale = find(stored, name, codes.name, "F8_E8M0", "U8", "F32")
        *outer, octets = codes.shape
        columns = 2 * octets
        if columns % GROUP:
            raise misfit(codes, f"{[*outer, columns // GROUP * GROUP // 2]}")
        check_shape(scale, (*outer, columns // GROUP))
        layout = GroupLayout(4, GROUP, SCALES[scale.dtype], "fp4")
        parts = {"packed": codes, "exponents": scale}
        return GroupedWeight(f"{module}.weight", (*outer, columns), self, parts, layout=layout)

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        assert isinstance(weight, GroupedWeight)
        layout = weight.layout
        if "packed" in weight.parts:
            octets = np.asarray(pick(matrix_of(weight, "packed", source, index), part.rows, 0)).view(np.uint8)
            codes = joined([unpack_range(octets, 4, span) for span in part.columns], 1)
            scales = numbers(
                pick(matrix_of(weight, "exponents", source, index), part.rows, 0), weight.parts["exponents"]
            )
            scales, size = split_groups(scales, GROUP, part.columns)
            return GroupedMatrix(replace(layout, group=size), codes, scales)
        return byte_groups(layout, (weight.block_rows, layout.group), weight, part, source, index)


def _block_size(settings: Mapping[str, Any]) -> Block | None:
    told = settings.get("weight_block_size")
    if told is None:
        return None
    if not (isinstance(told, list) and len(told) == 2 and all(isinstance(each, int) and each > 0 for each in told)):
        raise ModelError(f"config.json: weight_block_size {told!r} is no pair of whole numbers; download it again")
    return told[0], told[1]

"""MXFP4 as gpt-oss stores its experts: a stack of matrices, outputs first, though the module holds inputs first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ferrule.engine.weights.bits import exponents, joined, pick, unpack_range
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import Axes, GroupedFormat, GroupedWeight, split_groups
from ferrule.engine.weights.formats.parts import check_shape, find, matrix_of
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
from ferrule.model.headers import Stored
from ferrule.model.packing import GroupLayout

BLOCKS, SCALES = "_blocks", "_scales"
GROUP = 32
LAYOUT = GroupLayout(4, GROUP, "e8m0", "fp4")


class Mxfp4(GroupedFormat):
    """Of a parameter X of shape (experts, inputs, outputs): ``X_blocks`` (experts, outputs, groups, 16), bytes of two
    codes, the first in the lower bits; ``X_scales`` (experts, outputs, groups), bytes of E8M0."""

    name = "mxfp4"
    methods = frozenset({"mxfp4"})
    axes: ClassVar[Axes] = {"blocks": (0, 1), "scales": (0, 1)}

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        found: list[Weight] = []
        for blocks in stored.values():
            key = blocks.name.removesuffix(BLOCKS)
            if key == blocks.name:
                continue
            find(stored, blocks.name, blocks.name, "U8")
            scales = find(stored, key + SCALES, blocks.name, "U8", dimensions=3)
            experts, outputs, groups = scales.shape
            check_shape(blocks, (experts, outputs, groups, GROUP // 2), (experts, outputs, groups * GROUP // 2))
            shape = (experts, groups * GROUP, outputs)
            parts = {"blocks": blocks, "scales": scales}
            found.append(GroupedWeight(key, shape, self, parts, transposed=True, layout=LAYOUT))
        return found

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        blocks = pick(matrix_of(weight, "blocks", source, index), part.rows, 0)
        octets = blocks.reshape(len(blocks), -1)
        codes = joined([unpack_range(octets, 4, span) for span in part.columns], 1)
        scales = exponents(np.asarray(pick(matrix_of(weight, "scales", source, index), part.rows, 0)))
        scales, size = split_groups(scales, GROUP, part.columns)
        return GroupedMatrix(replace(LAYOUT, group=size), codes, scales)

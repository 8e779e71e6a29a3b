"""AWQ (Lin et al. 2023) as AutoAWQ stores it for its GEMM: codes packed along the outputs, interleaved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.bits import joined, pick, unpack
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import Axes, GroupedFormat, GroupedWeight, split_groups
from ferrule.engine.weights.formats.parts import SCALES, check_shape, find, matrix_of, misfit, modules, numbers
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
from ferrule.errors import ModelError
from ferrule.model import Range
from ferrule.model.headers import Stored
from ferrule.model.packing import GroupLayout

PER_WORD = 8


class Awq(GroupedFormat):
    """Of a module: ``qweight`` (inputs, outputs / 8) and ``qzeros`` (groups, outputs / 8), int32; ``scales`` (groups,
    outputs)."""

    name = "awq"
    methods = frozenset({"awq"})
    axes: ClassVar[Axes] = {"qweight": (1, 0), "scales": (1, None), "qzeros": (1, None)}

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        if settings.get("quant_method") != "awq":
            return []
        version, bits = str(settings.get("version", "gemm")).lower(), settings.get("bits", settings.get("w_bit", 4))
        if version != "gemm" or bits != 4:
            raise ModelError(
                f"the weights are stored by AWQ for {version!r} with {bits} bits, which is not run here; use a model "
                "stored for 'gemm' with 4 bits, or its bfloat16 weights"
            )
        return [self._weight(module, stored, settings) for module in modules(stored, "qweight")]

    def _weight(self, module: str, stored: Mapping[str, Stored], settings: Mapping[str, Any]) -> Weight:
        codes = find(stored, f"{module}.qweight", module, "I32", dimensions=2)
        scales = find(stored, f"{module}.scales", codes.name, "F16", "BF16", "F32", dimensions=2)
        zeros = find(stored, f"{module}.qzeros", codes.name, "I32", dimensions=2)
        (inputs, words), (groups, outputs) = codes.shape, scales.shape
        if words * PER_WORD != outputs:
            raise misfit(scales, f"[{groups}, {words * PER_WORD}]")
        check_shape(zeros, (groups, words))
        group = settings.get("group_size", settings.get("q_group_size"))
        if not isinstance(group, int) or group < 1 or -(-inputs // group) != groups:
            if groups == 0 or inputs % groups:
                raise misfit(scales, f"[groups, {outputs}] of {inputs} inputs in equal groups")
            group = inputs // groups
        parts = {"qweight": codes, "scales": scales, "qzeros": zeros}
        layout = GroupLayout(4, group, SCALES[scales.dtype], offsets=True, zero_points=True)
        return GroupedWeight(f"{module}.weight", (outputs, inputs), self, parts, layout=layout)

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        layout = self.layout(weight)
        words = matrix_of(weight, "qweight", source)
        codes = joined([_outputs(words[start:stop], part.rows) for start, stop in part.columns])
        scales = numbers(pick(matrix_of(weight, "scales", source), part.rows, 1), weight.parts["scales"]).T
        zeros = _outputs(matrix_of(weight, "qzeros", source), part.rows).T.astype(np.float32)
        offsets, _ = split_groups(-zeros * scales, layout.group, part.columns)
        scales, size = split_groups(scales, layout.group, part.columns)
        return GroupedMatrix(replace(layout, group=size), codes.T, scales, offsets)


def _outputs(words: NDArray[Any], ranges: tuple[Range, ...]) -> NDArray[np.uint8]:
    """The codes of outputs ``ranges``, end to end."""
    found = []
    for start, stop in ranges:
        first = start // PER_WORD
        codes = unpack(_in_order(words[:, first : -(-stop // PER_WORD)].view(np.uint32)), 4)
        found.append(codes[:, start - first * PER_WORD : stop - first * PER_WORD])
    return joined(found, 1)


def _in_order(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """AutoAWQ packs the eight outputs of a word in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first: bring them into
    their own."""
    even, odd = words & np.uint32(0xFFFF), words >> np.uint32(16)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F)):
        even, odd = ((each | each << np.uint32(shift)) & np.uint32(mask) for each in (even, odd))
    return even | odd << np.uint32(4)

"""GPTQ (Frantar et al. 2022) as AutoGPTQ and GPTQModel store it: codes packed along the inputs, transposed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.bits import joined, pick, unpack_range
from ferrule.engine.weights.formats.acting import by_owner, owned_packing
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import Axes, GroupedFormat, GroupedWeight
from ferrule.engine.weights.formats.parts import SCALES, check_shape, find, matrix_of, misfit, modules, numbers
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
from ferrule.errors import ModelError
from ferrule.model import Range
from ferrule.model.headers import Stored
from ferrule.model.packing import GroupLayout, Packing

BITS = (2, 3, 4, 8)


class Gptq(GroupedFormat):
    """Of a module: ``qweight`` (inputs * bits / 32, outputs), int32, the inputs' codes end to end from the lowest bit
    on; ``scales`` (groups, outputs); ``qzeros`` (groups, outputs * bits / 32), one less than the zero points in version
    1; ``g_idx`` (inputs), the group of each input: any with act-order (``desc_act``)."""

    name = "gptq"
    methods = frozenset({"gptq"})
    axes: ClassVar[Axes] = {"qweight": (1, 0), "scales": (1, None), "qzeros": (1, None)}
    _less = True
    """Whether zero points are stored less one."""

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        if settings.get("quant_method") not in (None, "gptq"):
            return []
        found = [self._weight(module, stored, settings) for module in modules(stored, "qweight")]
        version = settings.get("checkpoint_format", "gptq")
        if found and version not in ("gptq", "gptq_v2"):
            raise ModelError(
                f"the weights are stored by GPTQ as {version!r}, which is not run here; use a model stored as 'gptq' "
                "or 'gptq_v2', or its bfloat16 weights"
            )
        return found

    def _weight(self, module: str, stored: Mapping[str, Stored], settings: Mapping[str, Any]) -> Weight:
        codes = find(stored, f"{module}.qweight", module, "I32", dimensions=2)
        scales = find(stored, f"{module}.scales", codes.name, "F16", "BF16", "F32", dimensions=2)
        zeros = find(stored, f"{module}.qzeros", codes.name, "I32", dimensions=2)
        groups, outputs = scales.shape
        check_shape(codes, (codes.shape[0], outputs))
        bits = zeros.shape[1] * 32 // max(outputs, 1)
        if bits not in BITS or zeros.shape != (groups, -(-outputs * bits // 32)):
            known = " or ".join(str([groups, -(-outputs * each // 32)]) for each in BITS)
            raise misfit(zeros, f"{known} (2, 3, 4 or 8 bits)")
        inputs = codes.shape[0] * 32 // bits
        group = settings.get("group_size")
        if not isinstance(group, int) or group < 1 or -(-inputs // group) != groups:  # some modules may differ
            if groups == 0 or inputs % groups:
                raise misfit(scales, f"[{group or 'groups'}, {outputs}] of {inputs} inputs in equal groups")
            group = inputs // groups
        parts = {"qweight": codes, "scales": scales, "qzeros": zeros}
        if f"{module}.g_idx" in stored:
            index = find(stored, f"{module}.g_idx", codes.name, "I32", "I64")
            parts["g_idx"] = check_shape(index, (inputs,))
        symmetric = settings.get("sym") is True
        layout = GroupLayout(
            bits,
            group,
            SCALES[scales.dtype],
            zero=1 << (bits - 1) if symmetric else 0,
            offsets=not symmetric,
            zero_points=not symmetric,
        )
        version = _VersionTwo if settings.get("checkpoint_format") == "gptq_v2" else self
        return GroupedWeight(f"{module}.weight", (outputs, inputs), version, parts, layout=layout)

    def packing(self, weight: Weight, source: StoredTensors) -> Packing | None:
        if "g_idx" not in weight.parts:
            return super().packing(weight, source)
        return owned_packing(self.layout(weight), np.asarray(matrix_of(weight, "g_idx", source)))

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        layout = self.layout(weight)
        words = pick(matrix_of(weight, "qweight", source), part.rows, 1)
        codes = joined([unpack_range(words, layout.bits, span, axis=0) for span in part.columns]).T
        scales = numbers(pick(matrix_of(weight, "scales", source), part.rows, 1), weight.parts["scales"]).T
        zeros = self._zeros(weight, part.rows, source)
        offsets = -zeros * scales if layout.offsets else None
        if "g_idx" in weight.parts:
            owners, name = np.asarray(matrix_of(weight, "g_idx", source)), weight.parts["g_idx"].name
        else:
            owners, name = np.arange(weight.matrix[1]) // layout.group, ""
        return by_owner(layout, codes, scales, offsets, owners, part.columns, name)

    def _zeros(self, weight: Weight, rows: tuple[Range, ...], source: StoredTensors) -> NDArray[np.float32]:
        """The zero points, (rows, groups)."""
        layout = self.layout(weight)
        words = np.asarray(matrix_of(weight, "qzeros", source)).view(np.uint32)
        zeros = np.concatenate([unpack_range(self._stored(words, layout.bits), layout.bits, span) for span in rows], 1)
        if self._less and layout.bits == 3:
            zeros = (zeros + 1) & 7
        if layout.zero and (zeros != layout.zero).any():
            raise ModelError(
                f"{weight.parts['qzeros'].name} has other zero points than {layout.zero}, although config.json says "
                '"sym": true; download the model again, or set it to false'
            )
        return zeros.T.astype(np.float32)

    def _stored(self, words: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
        """Version 1 takes one from each zero point by taking these from whole words: with a zero point of 0 that
        borrows of the next one, so it is undone in the same way."""
        if not self._less or bits == 3:
            return words
        ones = sum(1 << place for place in range(0, 32, bits))
        return words + np.uint32(ones)


class _Two(Gptq):
    """Zero points are stored as they are."""

    _less = False


_VersionTwo = _Two()

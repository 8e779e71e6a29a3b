"""Plain weights that a rank quantises while it reads them (`--weights int8|int4`): groups of 32 columns of a row.

Each slice is read, quantised and packed some rows at a time, so that no tensor is ever held whole as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ferrule._native import quantise
from ferrule.engine.weights.bits import float32_of, pick
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import Axes, GroupedFormat, GroupedWeight
from ferrule.engine.weights.formats.registry import FORMATS
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
from ferrule.errors import ConfigError, PlanError
from ferrule.model.headers import Stored
from ferrule.model.on_load import GROUP, bits_on_load
from ferrule.model.packing import GroupLayout

SCALE_BYTES = 2
ELEMENTS = {"BF16": 0, "F16": 1, "F32": 2}
"""The native library's numbers of the dtypes that are quantised."""


class OnLoadWeight(GroupedWeight):
    """A `Weight` whose one part is plain."""

    @property
    def bytes(self) -> int:
        """Of what a rank holds of it: the file's plain numbers take more."""
        rows, columns = self.shape
        return rows * columns * self.layout.bits // 8 + rows * columns // GROUP * SCALE_BYTES


class OnLoad(GroupedFormat):
    """Of a plain matrix (outputs, inputs): codes of 8 or 4 bits as in GGUF's Q8_0 and Q4_0. No file has this format."""

    methods: frozenset[str] = frozenset()
    axes: ClassVar[Axes] = {"weight": (0, 1)}

    def __init__(self, name: str) -> None:
        self.name = name

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        return []

    def of(self, weight: Weight, bits: int) -> OnLoadWeight:
        """The plain ``weight``, to be quantised to ``bits``."""
        layout = GroupLayout(bits, GROUP, "f16", zero=1 << bits - 1)
        return OnLoadWeight(weight.key, weight.shape, self, weight.parts, layout=layout)

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        assert isinstance(weight, OnLoadWeight)
        stored = weight.parts["weight"]
        plain = np.ascontiguousarray(pick(pick(source.array(stored.name), part.rows, 0), part.columns, 1))
        if plain.shape[1] % GROUP:  # of experts; what is not a stack was checked before
            raise PlanError(
                f"{weight.key} would be quantised in groups of {GROUP}, and this split gives a rank "
                f"{plain.shape[1]} of its {weight.matrix[1]} columns; use fewer tensor parallel ranks"
            )
        element = ELEMENTS.get(stored.dtype)
        if element is None:
            plain, element = np.ascontiguousarray(float32_of(plain, stored.dtype)), ELEMENTS["F32"]
        return _quantised(plain, element, weight.layout)


def _quantised(plain: NDArray[Any], element: int, layout: GroupLayout) -> GroupedMatrix:
    rows, columns = plain.shape
    codes = np.empty((rows, columns), np.uint8)
    scales = np.empty((rows, columns // GROUP), np.float32)
    quantise(element, plain.ctypes.data, scales.size, layout.bits, codes.ctypes.data, scales.ctypes.data)
    return GroupedMatrix(layout, codes, scales)


def quantised_on_load(tensors: Mapping[str, Weight], weights: str, where: str) -> dict[str, Weight]:
    """``tensors`` of the model ``where``, those that ``--weights`` means as they are once quantised. Raises
    `ConfigError` where some are stored packed already."""
    plain = FORMATS[-1]
    packed = next((each for each in tensors.values() if each.format is not plain), None)
    if packed is not None:
        raise already_packed(weights, where, packed.format.name)
    form = OnLoad(weights)
    found = {}
    for key, weight in tensors.items():
        bits = bits_on_load(weights, key, weight.shape)
        found[key] = weight if bits is None else form.of(weight, bits)
    return found


def already_packed(weights: str, where: str, name: str) -> ConfigError:
    return ConfigError(f"{where} is stored packed ({name}): leave --weights {weights} out, or give the plain weights")

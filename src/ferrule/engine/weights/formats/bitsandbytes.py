"""bitsandbytes: NF4 and FP4 in blocks of the flattened tensor (QLoRA), and int8 by rows (LLM.int8)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.bits import pick
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import Axes, GroupedFormat, GroupedWeight
from ferrule.engine.weights.formats.parts import beside, check_shape, find, matrix_of, misfit, modules
from ferrule.engine.weights.groups import VALUES, GroupedMatrix, Rectangle
from ferrule.errors import ModelError
from ferrule.model import Range
from ferrule.model.headers import Stored
from ferrule.model.packing import GroupLayout, Values

STATE = "weight.quant_state.bitsandbytes__"
KINDS: dict[str, Values] = {"nf4": "nf4", "fp4": "bnb_fp4"}
MOST_STATE = 4096
"""Bytes of a quantisation's state; it has about a hundred."""


@dataclass(frozen=True, kw_only=True)
class BlockedWeight(GroupedWeight):
    """``block``: numbers of the flattened tensor that share a scale. ``nested``: scales that do, where these are codes
    themselves; ``offset``: what is added to them."""

    block: int
    nested: int = 0
    offset: float = 0.0


class BitsAndBytes(GroupedFormat):
    """4 bits: of a module ``weight`` (numbers / 2, 1), two codes in a byte, the first in the upper bits; ``absmax``, a
    scale for each block, or its code in ``nested_quant_map`` (256), to be multiplied by ``nested_absmax``; and a
    ``quant_state`` in JSON. 8 bits: ``weight`` (outputs, inputs), int8; ``SCB`` (outputs), 127 times the scale."""

    name = "bitsandbytes"
    methods = frozenset({"bitsandbytes"})
    axes: ClassVar[Axes] = {"int8": (0, 1), "SCB": (0, None)}

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        found = [
            self._four_bits(module, kind, stored, source) for kind in KINDS for module in modules(stored, STATE + kind)
        ]
        return found + [self._eight_bits(module, stored) for module in modules(stored, "SCB")]

    def _eight_bits(self, module: str, stored: Mapping[str, Stored]) -> Weight:
        scales = stored[f"{module}.SCB"]
        codes = find(stored, f"{module}.weight", scales.name, "I8", dimensions=2)
        find(stored, scales.name, codes.name, "F32")
        check_shape(scales, codes.shape[:1])
        parts = {"int8": codes, "SCB": scales, **beside(stored, module, "weight_format")}
        if "weight_format" in parts:
            check_shape(find(stored, f"{module}.weight_format", codes.name, "U8"), (), (1,))
        layout = GroupLayout(8, 0, "f32", zero=128)
        return GroupedWeight(codes.name, codes.shape, self, parts, layout=layout)

    def _four_bits(self, module: str, kind: str, stored: Mapping[str, Stored], source: StoredTensors) -> Weight:
        name = f"{module}.weight"
        state = find(stored, f"{module}.{STATE}{kind}", name, "U8", dimensions=1)
        codes = find(stored, name, state.name, "U8", "BF16", "F16", "F32")  # bytes, whatever they are called
        told = _state(state, source)
        shape, block = told["shape"], told["blocksize"]
        numbers = prod(shape)
        if codes.bytes != -(-numbers // 2):
            raise misfit(codes, f"{-(-numbers // 2):,} bytes for a weight of {list(shape)}")
        blocks = -(-numbers // block)
        nested = f"{name}.nested_absmax" in stored
        absmax = find(stored, f"{name}.absmax", name, "U8" if nested else "F32")
        table = find(stored, f"{name}.quant_map", name, "F32")
        parts = {
            "codes": codes,
            "absmax": check_shape(absmax, (blocks,)),
            "quant_map": check_shape(table, (16,)),
            "quant_state": state,
        }
        if nested:
            of_scales = find(stored, f"{name}.nested_absmax", name, "F32")
            parts["nested_absmax"] = check_shape(of_scales, (-(-blocks // told["nested_blocksize"]),))
            parts["nested_quant_map"] = check_shape(find(stored, f"{name}.nested_quant_map", name, "F32"), (256,))
        return BlockedWeight(
            name,
            shape,
            self,
            parts,
            layout=GroupLayout(4, gcd(block, shape[1]), "f32", KINDS[kind]),
            block=block,
            nested=told["nested_blocksize"] if nested else 0,
            offset=told["nested_offset"] if nested else 0.0,
        )

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        if isinstance(weight, BlockedWeight):
            return _blocked(weight, part, source)
        if "weight_format" in weight.parts:
            _check_row_format(weight, source)
        codes = pick(pick(matrix_of(weight, "int8", source), part.rows, 0), part.columns, 1)
        scales: NDArray[np.float32] = pick(matrix_of(weight, "SCB", source), part.rows, 0)
        layout = self.layout(weight)
        return GroupedMatrix(
            layout, np.ascontiguousarray(codes).view(np.uint8) ^ np.uint8(128), scales[:, None] / np.float32(127)
        )


def _blocked(weight: BlockedWeight, part: Rectangle, source: StoredTensors) -> GroupedMatrix:
    table = np.asarray(matrix_of(weight, "quant_map", source))
    if not np.allclose(table, VALUES[weight.layout.values], atol=1e-6):
        raise ModelError(
            f"{weight.parts['quant_map'].name} is not the table of {weight.layout.values}; download the model again, "
            "or use its bfloat16 weights"
        )
    size = weight.layout.group
    for start, stop in part.columns:
        size = gcd(size, gcd(start, stop))
    inputs = weight.shape[1]
    octets = matrix_of(weight, "codes", source).reshape(-1).view(np.uint8)
    codes = np.concatenate([_rows(octets, span, inputs) for span in part.rows])
    rows = np.concatenate([np.arange(start, stop) for start, stop in part.rows])
    columns = np.concatenate([np.arange(start, stop, size) for start, stop in part.columns])
    blocks = (rows[:, None] * inputs + columns) // weight.block
    layout = GroupLayout(4, size, "f32", weight.layout.values)
    return GroupedMatrix(layout, pick(codes, part.columns, 1), _scales(weight, blocks, source))


def _rows(octets: NDArray[np.uint8], rows: Range, inputs: int) -> NDArray[np.uint8]:
    """The codes of ``rows``, which follow each other without regard to bytes."""
    start, stop = rows[0] * inputs, rows[1] * inputs
    some = octets[start // 2 : -(-stop // 2)]
    codes = np.stack((some >> 4, some & 15), axis=1).reshape(-1)
    return codes[start % 2 : start % 2 + stop - start].reshape(-1, inputs)


def _scales(weight: BlockedWeight, blocks: NDArray[np.int64], source: StoredTensors) -> NDArray[np.float32]:
    absmax = matrix_of(weight, "absmax", source)[blocks]
    if not weight.nested:
        return absmax.astype(np.float32)
    table: NDArray[np.float32] = matrix_of(weight, "nested_quant_map", source)
    of_scales = np.asarray(matrix_of(weight, "nested_absmax", source))[blocks // weight.nested]
    found: NDArray[np.float32] = table[absmax] * of_scales + np.float32(weight.offset)
    return found


def _check_row_format(weight: Weight, source: StoredTensors) -> None:
    kind = int(np.asarray(matrix_of(weight, "weight_format", source)).reshape(-1)[0])
    if kind != 0:
        raise ModelError(
            f"{weight.key} is stored in the order of a GPU's tiles (weight_format {kind}), which is not run here; save "
            "the model again with a newer bitsandbytes, or use its bfloat16 weights"
        )


def _state(state: Stored, source: StoredTensors) -> dict[str, Any]:
    """Contents of a ``quant_state``. Raises `ModelError` where it is damaged."""
    try:
        if state.bytes > MOST_STATE:
            raise ValueError(f"{state.bytes:,} bytes")
        told = json.loads(np.asarray(source.array(state.name)).tobytes())
        shape, block = tuple(told["shape"]), told["blocksize"]
        if [type(each) for each in (*shape, block)] != [int] * 3 or min(*shape, block) < 1:
            raise ValueError(f"a shape of {shape} in blocks of {block}")
        nested, offset = told.get("nested_blocksize", 256), told.get("nested_offset", 0.0)
        if type(nested) is not int or nested < 1 or not isinstance(offset, int | float):
            raise ValueError(f"scales in blocks of {nested} with {offset}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{state.name} is no state of a quantised weight ({error}); download the model again"
        ) from None
    return {"shape": shape, "blocksize": block, "nested_blocksize": nested, "nested_offset": float(offset)}

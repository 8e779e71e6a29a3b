"""compressed-tensors, as LLM Compressor and vLLM store it: integers, FP8 and FP4, whose kinds config.json tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ferrule.engine.weights.bits import exponents, joined, pick, unpack_range
from ferrule.engine.weights.formats.acting import by_owner, owned_packing
from ferrule.engine.weights.formats.blocks import FLOAT8, Block, block_of, byte_groups
from ferrule.engine.weights.formats.format import StoredTensors, Weight
from ferrule.engine.weights.formats.grouped import Axes, GroupedFormat, GroupedWeight, split_groups
from ferrule.engine.weights.formats.parts import SCALES, beside, check_shape, find, matrix_of, misfit, modules, numbers
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle
from ferrule.errors import ModelError
from ferrule.model.headers import Stored
from ferrule.model.packing import GroupLayout, Packing

UNUSED = ("weight_shape", "input_scale", "input_zero_point", "input_global_scale")
"""Parts that are not needed for a weight's numbers: for activations of fewer bits, and a shape that is known."""


@dataclass(frozen=True)
class Told:
    """Settings of a module's weights in config.json. ``group``: 0 where it tells none."""

    bits: int
    group: int
    symmetric: bool
    block: Block | None


class CompressedTensors(GroupedFormat):
    """Of a module, packed: ``weight_packed`` (outputs, inputs * bits / 32), int32, codes end to end, or (outputs,
    inputs / 2), bytes of two FP4 codes; ``weight_scale`` (outputs, groups); ``weight_zero_point`` (outputs * bits / 32,
    groups); ``weight_g_idx`` (inputs), the group of each; ``weight_global_scale``, by which nvfp4's scales are divided.
    Otherwise ``weight`` of int8 or FP8, and ``weight_scale`` for each row, block, or one."""

    name = "compressed-tensors"
    methods = frozenset({"compressed-tensors"})
    axes: ClassVar[Axes] = {"packed": (0, 1), "weight": (0, 1)}

    def recognise(
        self, stored: Mapping[str, Stored], settings: Mapping[str, Any], source: StoredTensors
    ) -> list[Weight]:
        if settings.get("quant_method") != "compressed-tensors":
            return []
        _check_settings(settings)
        found = [self._packed(module, stored, settings) for module in modules(stored, "weight_packed")]
        for module in modules(stored, "weight_scale"):
            codes = stored.get(f"{module}.weight")
            if codes is not None and codes.dtype in (*FLOAT8, "I8"):
                found.append(self._bytes(module, codes, stored, _told(module, settings)))
        for module in modules(stored, "weight"):
            if stored[f"{module}.weight"].dtype in (*FLOAT8, "I8"):
                find(stored, f"{module}.weight_scale", f"{module}.weight", *SCALES)
        return found

    def _packed(self, module: str, stored: Mapping[str, Stored], settings: Mapping[str, Any]) -> Weight:
        codes = find(stored, f"{module}.weight_packed", module, "I32", "U8", dimensions=2)
        if codes.dtype == "U8":
            return self._floats(module, codes, stored)
        told = _told(module, settings)
        if not 2 <= told.bits <= 8:
            raise ModelError(
                f"{codes.name} is packed with {told.bits} bits, which is not run here; use its bfloat16 weights"
            )
        scales = find(stored, f"{module}.weight_scale", codes.name, "F16", "BF16", "F32", dimensions=2)
        rows, words = codes.shape
        groups = scales.shape[1]
        columns = groups * told.group if told.group else words * 32 // told.bits
        if told.group and columns * told.bits > words * 32 and groups:  # the last group is a smaller one
            columns = words * 32 // told.bits
        if scales.shape[0] != rows or not groups or -(-columns * told.bits // 32) != words:
            raise misfit(scales, f"[{rows}, {-(-words * 32 // told.bits // max(told.group, 1))}]")
        group = told.group or -(-columns // groups)
        if -(-columns // group) != groups:
            raise misfit(scales, f"[{rows}, {-(-columns // group)}]")
        parts = {"packed": codes, "scale": scales, **beside(stored, module, *UNUSED)}
        if not told.symmetric:
            zeros = find(stored, f"{module}.weight_zero_point", codes.name, "I32", dimensions=2)
            parts["zero"] = check_shape(zeros, (-(-rows * told.bits // 32), groups))
        if f"{module}.weight_g_idx" in stored:
            owners = find(stored, f"{module}.weight_g_idx", codes.name, "I32", "I64")
            parts["owners"] = check_shape(owners, (columns,))
        zero = 1 << (told.bits - 1) if told.symmetric else 0
        layout = GroupLayout(
            told.bits,
            group,
            SCALES[scales.dtype],
            zero=zero,
            offsets=not told.symmetric,
            zero_points=not told.symmetric,
        )
        return GroupedWeight(f"{module}.weight", (rows, columns), self, parts, layout=layout)

    def _floats(self, module: str, codes: Stored, stored: Mapping[str, Stored]) -> Weight:
        """FP4: groups of 16 with scales of E4M3 and one for the whole tensor, or groups of 32 with powers of two."""
        scales = find(stored, f"{module}.weight_scale", codes.name, "F8_E4M3", "U8", "F8_E8M0", dimensions=2)
        group = 16 if scales.dtype == "F8_E4M3" else 32
        layout = GroupLayout(4, group, "f32" if group == 16 else "e8m0", "fp4")
        rows, columns = codes.shape[0], codes.shape[1] * 2
        check_shape(scales, (rows, columns // group))
        if columns % group:
            raise misfit(codes, f"[{rows}, {columns // group * group // 2}]")
        parts = {"packed": codes, "scale": scales, **beside(stored, module, *UNUSED)}
        if group == 16:
            whole = find(stored, f"{module}.weight_global_scale", codes.name, "F32")
            parts["global"] = check_shape(whole, (1,), ())
        return GroupedWeight(f"{module}.weight", (rows, columns), self, parts, layout=layout)

    def _bytes(self, module: str, codes: Stored, stored: Mapping[str, Stored], told: Told) -> Weight:
        scale = find(stored, f"{module}.weight_scale", codes.name, *SCALES)
        if len(codes.shape) != 2:
            raise misfit(codes, "2 dimensions")
        block = block_of(codes.shape, scale, told.block or ((1, told.group) if told.group else None))
        parts = {"weight": codes, "scale": scale, **beside(stored, module, *UNUSED)}
        if codes.dtype != "I8":
            values = "e4m3" if codes.dtype == "F8_E4M3" else "e5m2"
            layout = GroupLayout(8, block[1], SCALES[scale.dtype], values)  # type: ignore[arg-type]
        else:
            uneven = not told.symmetric
            layout = GroupLayout(
                8, block[1], SCALES[scale.dtype], zero=0 if uneven else 128, offsets=uneven, zero_points=uneven
            )
            if uneven:
                zeros = find(stored, f"{module}.weight_zero_point", codes.name, "I8")
                parts["zero"] = check_shape(zeros, scale.shape)
        return GroupedWeight(f"{module}.weight", codes.shape, self, parts, layout=layout, block_rows=block[0])

    def packing(self, weight: Weight, source: StoredTensors) -> Packing | None:
        if "owners" not in weight.parts:
            return super().packing(weight, source)
        return owned_packing(self.layout(weight), np.asarray(matrix_of(weight, "owners", source)))

    def groups(self, weight: Weight, part: Rectangle, source: StoredTensors, index: int = 0) -> GroupedMatrix:
        assert isinstance(weight, GroupedWeight)
        layout = weight.layout
        if "weight" in weight.parts:
            return byte_groups(layout, (weight.block_rows, layout.group), weight, part, source, index)
        words = pick(matrix_of(weight, "packed", source), part.rows, 0)
        codes = joined([unpack_range(words, layout.bits, span) for span in part.columns], 1)
        scales = self._scales(weight, part, source)
        if "weight_shape" in weight.parts:
            _check_told_shape(weight, source)
        offsets = None
        if layout.offsets:
            packed = matrix_of(weight, "zero", source)
            zeros = np.concatenate([unpack_range(packed, layout.bits, span, axis=0) for span in part.rows])
            offsets = -zeros.astype(np.float32) * scales
        if "owners" in weight.parts:
            owners = np.asarray(matrix_of(weight, "owners", source))
            return by_owner(layout, codes, scales, offsets, owners, part.columns, weight.parts["owners"].name)
        if offsets is not None:
            offsets, _ = split_groups(offsets, layout.group, part.columns)
        scales, size = split_groups(scales, layout.group, part.columns)
        return GroupedMatrix(replace(layout, group=size), codes, scales, offsets)

    def _scales(self, weight: Weight, part: Rectangle, source: StoredTensors) -> np.ndarray[Any, Any]:
        stored = np.asarray(pick(matrix_of(weight, "scale", source), part.rows, 0))
        if weight.parts["scale"].dtype in ("U8", "F8_E8M0"):
            return exponents(stored)
        scales = numbers(stored, weight.parts["scale"])
        if "global" not in weight.parts:
            return scales
        divisor = np.float32(np.asarray(matrix_of(weight, "global", source)).reshape(())[()])
        if not np.isfinite(divisor) or divisor == 0:
            raise ModelError(
                f"{weight.parts['global'].name} is {divisor}, which scales nothing; download the model again"
            )
        return scales / divisor


def _check_told_shape(weight: Weight, source: StoredTensors) -> None:
    told = np.asarray(matrix_of(weight, "weight_shape", source)).reshape(-1).tolist()
    if tuple(told) != weight.shape:
        raise ModelError(
            f"{weight.parts['weight_shape'].name} says {told}, but {weight.parts['packed'].name} holds "
            f"{list(weight.shape)}; download the model again, or use its bfloat16 weights"
        )


def _check_settings(settings: Mapping[str, Any]) -> None:
    if not isinstance(settings.get("config_groups"), Mapping):
        raise ModelError("config.json: quantization_config lacks config_groups; download it again")
    sparse = settings.get("sparsity_config")
    if isinstance(sparse, Mapping) and sparse.get("format") not in (None, "dense"):
        raise ModelError(
            f"the weights are stored sparsely ({sparse['format']}), which is not run here; use its bfloat16 weights"
        )


def _told(module: str, settings: Mapping[str, Any]) -> Told:
    """Settings of ``module`` in config.json: by the group that names it, else by one for a class of modules."""
    general: Mapping[str, Any] = {}
    for group in settings["config_groups"].values():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            continue
        told = group.get("targets")
        targets = [str(target) for target in told] if isinstance(told, list) else []
        if any(_names(target, module) for target in targets):
            return _read(group["weights"])
        general = general or group["weights"]
    return _read(general)


def _names(target: str, module: str) -> bool:
    if target.startswith("re:"):
        try:
            return re.match(target.removeprefix("re:"), module) is not None
        except re.error as error:
            raise ModelError(
                f"config.json: config_groups has the target {target!r}, which is damaged ({error})"
            ) from None
    return module == target or module.endswith(f".{target}")


def _read(weights: Mapping[str, Any]) -> Told:
    bits, group, block = weights.get("num_bits"), weights.get("group_size"), weights.get("block_structure")
    if not isinstance(bits, int):
        raise ModelError(f"config.json: config_groups has num_bits {bits!r}, which is no whole number")
    pair = block if isinstance(block, list) and [type(each) for each in block] == [int, int] else None
    return Told(
        bits,
        group if isinstance(group, int) and group > 0 else 0,
        weights.get("symmetric", True) is not False,
        (pair[0], pair[1]) if pair else None,
    )

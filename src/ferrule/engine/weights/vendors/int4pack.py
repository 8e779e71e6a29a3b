"""torch's product of 4-bit codes with a scale and an offset for each group: `aten::_weight_int4pack_mm`."""

from __future__ import annotations

import torch
from torch import Tensor

from ferrule.engine.weights.device_codes import Held
from ferrule.engine.weights.vendors.vendor import Form, Prepared, has_kernel

_GROUPS = (32, 64, 128, 256)
_TILES, _TILE = 8, 16
"""How many tiles of how many columns lie together in the layout of GPUs; outputs come in tiles, too."""
_MIDDLE = 8
"""The code that stands for the offset itself: a number is ``(code - 8) * scale + offset``."""


class Int4Pack:
    """`Vendor`. Its layout: codes in an order that depends on the device, and (groups, outputs, 2) scales and offsets
    of the activations' type, as many bytes as ours where the offsets are no zero points. Ours are those of the code 0:
    moved to the middle, where weights are near 0, they are rounded by less than a number of the activations' type."""

    name = "torch int4pack"

    def fits(self, form: Form) -> bool:
        layout = form.layout
        affine = layout.bits == 4 and layout.values == "integer" and layout.offsets and not layout.zero_points
        exact = layout.zero == 0 and not form.nested and form.scale == form.dtype
        shape = form.group in _GROUPS and form.outputs % _TILE == 0 and form.columns % (_TILES * _TILE) == 0
        typed = form.device.type != "cuda" or form.dtype == torch.bfloat16
        return affine and exact and shape and typed and has_kernel(_operation(form), form.device)

    def bytes(self, form: Form) -> int:
        return form.outputs * (form.columns // 2 + form.columns // form.group * 2 * form.dtype.itemsize)

    def prepare(self, held: Held, form: Form) -> Prepared:
        codes, scales = held.codes, held.scales.float()
        assert held.offsets is not None
        middle = held.offsets.float() + _MIDDLE * scales
        both = torch.stack((scales, middle), dim=-1).to(form.dtype).transpose(0, 1).contiguous()
        if form.device.type == "cpu":
            single = torch.stack((codes & 15, codes >> 4), dim=-1).reshape(form.outputs, form.columns)
            return torch.ops.aten._convert_weight_to_int4pack_for_cpu(single.int(), _TILES), both
        turned = (codes << 4) | (codes >> 4)  # the first of two codes in the upper bits
        return torch.ops.aten._convert_weight_to_int4pack(turned, _TILES), both

    def multiply(self, prepared: Prepared, form: Form, x: Tensor) -> Tensor:
        codes, both = prepared
        product: Tensor = getattr(torch.ops.aten, _operation(form))(x, codes, form.group, both)
        return product


def _operation(form: Form) -> str:
    return "_weight_int4pack_mm_for_cpu" if form.device.type == "cpu" else "_weight_int4pack_mm"

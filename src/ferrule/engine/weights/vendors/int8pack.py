"""torch's product of whole bytes with a scale for each row: `aten::_weight_int8pack_mm`."""

from __future__ import annotations

import torch
from torch import Tensor

from ferrule.engine.weights.device_codes import Held
from ferrule.engine.weights.vendors.vendor import Form, Prepared, has_kernel


class Int8Pack:
    """`Vendor`. Its layout: signed bytes (outputs, columns), and scales (outputs,) of the activations' type."""

    name = "torch int8pack"

    def fits(self, form: Form) -> bool:
        layout = form.layout
        signed = layout.bits == 8 and layout.values == "integer" and layout.zero == 128 and not layout.offsets
        exact = form.group == 0 and not form.nested and form.scale == form.dtype
        return signed and exact and has_kernel("_weight_int8pack_mm", form.device)

    def bytes(self, form: Form) -> int:
        return form.outputs * (form.columns + form.dtype.itemsize)

    def prepare(self, held: Held, form: Form) -> Prepared:
        return (held.codes ^ 128).view(torch.int8), held.scales.reshape(-1).clone()

    def multiply(self, prepared: Prepared, form: Form, x: Tensor) -> Tensor:
        codes, scales = prepared
        product: Tensor = torch.ops.aten._weight_int8pack_mm(x, codes, scales)
        return product

"""Packed weights in a vendor's layout, multiplied by its kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ferrule.engine.weights.device_codes import DeviceCodes
from ferrule.engine.weights.formats.packed import Packed
from ferrule.engine.weights.vendors.vendor import Form, Vendor


class VendorMatrix(Packed):
    """Made of ``packed``, for products of ``dtype``; holds what ``vendor`` prepares of it, and nothing else."""

    def __init__(self, vendor: Vendor, packed: DeviceCodes, dtype: torch.dtype) -> None:
        form = Form.of(packed, dtype)
        prepared = vendor.prepare(packed.held, form)
        self.kernel, self.dtype, self.device = vendor.name, dtype, form.device
        self.shape = torch.Size((form.outputs, form.columns))
        self.bytes = sum(each.nbytes for each in prepared)
        self._vendor, self._form, self._prepared = vendor, form, prepared

    def multiply(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).to(self.dtype).contiguous()
        if rows.shape[0] == 0:
            return x.new_empty(*x.shape[:-1], self.shape[0])
        y = self._vendor.multiply(self._prepared, self._form, rows)
        return y.to(x.dtype).reshape(*x.shape[:-1], self.shape[0])

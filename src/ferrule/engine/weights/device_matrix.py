"""Packed matrices in a device's own memory. Where there is no kernel for the device (`triton_product`,
`metal_product`), torch's operations multiply by them: some rows at a time become numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from operator import itemgetter
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ferrule.engine.weights.device_codes import DeviceCodes, Held, as_held
from ferrule.engine.weights.formats.format import StoredTensors
from ferrule.engine.weights.formats.packed import Packed
from ferrule.engine.weights.groups import GroupedMatrix, steps
from ferrule.engine.weights.matrix import Piece, alike
from ferrule.engine.weights.vendors.choice import chooser
from ferrule.engine.weights.vendors.vendor_matrix import VendorMatrix
from ferrule.model.packing import SUPER, GroupLayout, Scale
from ferrule.staging import Uploads

AT_ONCE = 1 << 24
"""Numbers that are unpacked at a time while a product is computed: 32 MB of bfloat16."""
_SCALES: dict[Scale, torch.dtype] = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
    "e8m0": torch.bfloat16,  # whose exponent has the same 8 bits
}  # fmt: skip


class DeviceMatrix(Packed):
    """A packed weight on a device. ``dtype``: of products."""

    def __init__(
        self, layout: GroupLayout, held: Held, shape: tuple[int, int], dtype: torch.dtype, order: Tensor | None = None
    ) -> None:
        self.packed, self.dtype, self._order = DeviceCodes(layout, held), dtype, order
        self.reordered = order is not None
        self.shape, self.device = torch.Size(shape), self.packed.device
        self._kernels = kernels_for(self.packed)
        self.kernel = kernel_name(self._kernels)
        self.bytes = held.bytes + (0 if order is None else order.numel() * order.element_size())

    def multiply(self, x: Tensor) -> Tensor:
        if self._order is not None:
            x = functional.pad(x, (0, 1)).index_select(-1, self._order)  # -1 became the column of zeros
        kernels = self._kernels
        if kernels is not None and math.prod(x.shape[:-1]) <= kernels.MOST_ROWS:
            product: Tensor = kernels.multiply(self.packed, x)
            return product
        step = max(1, AT_ONCE // max(1, x.shape[-1]))
        parts = [
            functional.linear(x, self.packed.numbers(itemgetter(slice(a, a + step))).to(x.dtype))
            for a in range(0, self.shape[0], step)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def kernels_for(packed: DeviceCodes) -> ModuleType | None:
    """Products without numbers on the way (`triton_product`, `metal_product`), where there are some for the device and
    the layout."""
    if packed.device.type == "mps":
        from ferrule.engine.weights import metal_product

        return metal_product if metal_product.fits(packed) else None
    if packed.device.type not in ("cuda", "xpu") or find_spec("triton") is None:
        return None
    from ferrule.engine.weights import triton_product

    return triton_product if triton_product.fits(packed) else None


def kernel_name(kernels: ModuleType | None) -> str:
    """What multiplies, for people."""
    return str(kernels.NAME) if kernels is not None else "torch's operations"


def pack_on(piece: Piece, source: StoredTensors, dtype: torch.dtype, uploads: Uploads, pad: int = 0) -> Packed | None:
    """``piece`` with ``pad`` rows of zeros behind it, in the layout of the fastest kernel (`vendors.choice`); None
    where it is to be held as numbers."""
    found = read_on([[piece]], source, uploads, pad)
    if found is None:
        return None
    first, parts = found
    ours = _made(first, parts, (piece.part.shape[0] + pad, piece.part.shape[1]), dtype)
    vendor = chooser().choice(ours).vendor
    return ours if vendor is None else VendorMatrix(vendor, ours.packed, dtype)


def read_on(
    stack: Sequence[Sequence[Piece]], source: StoredTensors, uploads: Uploads, pad: int = 0
) -> tuple[GroupedMatrix, list[Tensor | None]] | None:
    """The rows of all matrices of ``stack``, each of the rows of its pieces, and ``pad`` ones of zeros behind them:
    the first groups, and the fields of `Held`. They are read and copied to the device some rows at a time. None where
    they are not packed, or cannot be held together."""
    rows = sum(piece.part.shape[0] for pieces in stack for piece in pieces)
    first: GroupedMatrix | None = None
    rooms: list[Tensor | None] = []
    done = 0
    for piece in (piece for pieces in stack for piece in pieces):
        for start, stop in steps(piece.part):
            groups = piece.groups(piece.part.some_rows(start, stop), source)
            if groups is None or groups.codes.shape[1] % 2 or (first is not None and not alike([first, groups])):
                return None
            some = _host(groups)
            if first is None:
                first = groups
                rooms = [None if each is None else _zeros(each, rows + pad, uploads.device) for each in some]
            for room, each in zip(rooms, some, strict=True):
                if room is not None and each is not None:
                    uploads.write(room[done : done + stop - start], each)
            done += stop - start
    return None if first is None else (first, rooms)


def _zeros(like: Tensor, rows: int, device: torch.device) -> Tensor:
    return torch.zeros((rows, *like.shape[1:]), dtype=like.dtype, device=device)


def hold(groups: GroupedMatrix, dtype: torch.dtype, device: torch.device) -> DeviceMatrix:
    """``groups`` as they are, on a device. ``dtype``: of products."""
    parts = [None if each is None else each.to(device) for each in _host(groups)]
    rows, columns = groups.codes.shape
    return _made(groups, parts, (rows, columns), dtype)


def _made(first: GroupedMatrix, parts: list[Tensor | None], shape: tuple[int, int], dtype: torch.dtype) -> DeviceMatrix:
    held, order = as_held(parts), None
    if first.order is not None:
        order = torch.from_numpy(np.where(first.order < 0, shape[1], first.order)).to(held.codes.device)
    return DeviceMatrix(first.layout, held, shape, dtype, order)


def _host(groups: GroupedMatrix) -> list[Tensor | None]:
    """The fields of `Held`, in host memory."""
    layout = groups.layout
    codes = groups.codes if layout.bits > 4 else groups.codes[:, ::2] + groups.codes[:, 1::2] * np.uint8(16)
    found: list[Tensor | None] = [torch.from_numpy(np.require(codes, requirements=("C", "W")))]
    for values, supers in ((groups.scales, groups.supers), (groups.offsets, groups.super_offsets)):
        if values is None:
            found.append(None)
        elif supers is not None:
            wide = np.repeat(supers, SUPER * values.shape[1] // groups.codes.shape[1], axis=1)
            found.append(_multiples(values, wide).to(torch.int8))
        elif values is groups.offsets and layout.zero_points:
            found.append(_multiples(values, -groups.scales).to(torch.uint8))
        else:
            found.append(torch.from_numpy(np.ascontiguousarray(values)).to(_SCALES[layout.scale]))
    for each in (groups.supers, groups.super_offsets):
        found.append(None if each is None else torch.from_numpy(np.ascontiguousarray(each)))
    return found


def _multiples(values: NDArray[np.float32], of: NDArray[np.float32]) -> Tensor:
    """The whole numbers by which ``of`` was multiplied."""
    return torch.from_numpy(np.rint(np.divide(values, of, out=np.zeros_like(values), where=of != 0)).astype(np.int16))

"""Data pointers of arrays: numpy arrays, torch tensors, and anything else on the CPU that speaks DLPack."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ferrule import _native
from ferrule._native import DTYPES

Location = tuple[int, int, int]
"""Address, number of elements, code of the element type in the native core."""

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
"""Of an element, by the names of the types that can be moved."""

_torch_tensor: Any = None
_torch_strided: Any = None
_torch_codes: dict[Any, int] = {}
_numpy_codes: dict[Any, int] = {}


def locate(x: Any, *, writable: bool) -> Location:
    """Address, element count and type code of ``x``, without a copy.

    Raises `TypeError` for what is no array, an element type that cannot be moved or a tensor on a device, and
    `ValueError` for a layout with gaps or a read-only array that would have to be written.
    """
    if _torch_tensor is not None and isinstance(x, _torch_tensor):
        place = _find_tensor(x)
        if place is None:  # DLPack may count pinned host memory as a device's
            place = _find_by_attributes(x)
        if place is not None:
            return place
        raise _refuse_torch(x)
    if isinstance(x, np.ndarray):
        return _locate_numpy(x, writable)
    return _locate_other(x, writable)


def tensor_finder() -> Callable[[Any], Location | None]:
    """The quickest function from a torch tensor to where it is, for the torch that is imported.

    It gives None for a tensor on a device, with gaps, or of an element type that cannot be moved.
    """
    _register_torch()
    return _find_tensor


def new_like(x: Any, shape: Sequence[int]) -> Any:
    """A fresh contiguous array of the same kind and element type."""
    if _torch_tensor is not None and isinstance(x, _torch_tensor):
        return x.new_empty(tuple(shape))
    if isinstance(x, np.ndarray):
        return np.empty(shape, dtype=x.dtype)
    raise TypeError(f"give out=: Ferrule does not know how to make another {type(x).__name__}")


def _locate_numpy(x: np.ndarray[Any, Any], writable: bool) -> Location:
    code = _numpy_codes.get(x.dtype)
    if code is None:
        code = _numpy_code(x.dtype)
    if not x.flags.c_contiguous:
        raise ValueError(f"the array is not contiguous (shape {x.shape}, strides {x.strides}); pass a contiguous copy")
    address, read_only = x.__array_interface__["data"]
    if writable and read_only:
        raise ValueError("the array is read-only and this operation writes to it; pass a writable copy")
    return address, x.size, code


def _locate_other(x: Any, writable: bool) -> Location:
    _register_torch()
    if _torch_tensor is not None and isinstance(x, _torch_tensor):
        return locate(x, writable=writable)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"{type(x).__name__} is no array; pass a numpy array, a torch tensor or a DLPack exporter")
    if x.__dlpack_device__()[0] != 1:
        raise TypeError(f"this {type(x).__name__} is not in host memory; copy it to the CPU first")
    return _locate_numpy(np.from_dlpack(x), writable)


def _register_torch() -> None:
    """Learn torch's types once the program has imported torch; Ferrule itself never does."""
    global _torch_tensor, _torch_strided, _find_tensor
    torch = sys.modules.get("torch")
    if _torch_tensor is None and torch is not None and hasattr(torch, "Tensor"):
        _torch_codes.update({getattr(torch, name): code for name, code in DTYPES.items()})
        _torch_tensor, _torch_strided = torch.Tensor, torch.strided
        # From torch 2.10 on tensors can be asked in C.
        api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if api is not None and _native.know_tensors(torch.Tensor, api):
            _find_tensor = _native.locate_tensor


def _find_by_attributes(x: Any) -> Location | None:
    code = _torch_codes.get(x.dtype)
    if code is None or not x.is_cpu or x.layout is not _torch_strided or not x.is_contiguous():
        return None
    address, count = x.data_ptr(), x.numel()
    # A wrapper, such as a DTensor, has elements but no memory.
    return (address, count, code) if address or not count else None


_find_tensor: Callable[[Any], Location | None] = _find_by_attributes


def _numpy_code(dtype: np.dtype[Any]) -> int:
    # ml_dtypes registers its bfloat16 with numpy under this name. A type of foreign byte order has the same name.
    code = DTYPES.get(dtype.name)
    if code is None or not dtype.isnative or dtype.itemsize != DTYPE_BYTES[dtype.name]:
        raise TypeError(f"element type {dtype} cannot be moved; use one of {', '.join(DTYPES)}")
    _numpy_codes[dtype] = code
    return code


def _refuse_torch(x: Any) -> Exception:
    if not x.is_cpu:
        return TypeError(f"the tensor is on {x.device}; Ferrule moves host memory, so pass x.cpu()")
    if x.dtype not in _torch_codes:
        return TypeError(f"element type {x.dtype} cannot be moved; use one of {', '.join(DTYPES)}")
    if x.layout is not _torch_strided:
        return TypeError(f"the tensor is sparse ({x.layout}); pass x.to_dense()")
    if x.is_contiguous():
        return TypeError(f"this {type(x).__name__} has no memory of its own; pass the tensor that has, as x.to_local()")
    shape, strides = tuple(x.shape), x.stride()
    return ValueError(f"the tensor is not contiguous (shape {shape}, strides {strides}); pass x.contiguous()")

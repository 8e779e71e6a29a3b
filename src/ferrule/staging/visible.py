"""Device memory that the host reads and writes by itself: Apple's, and managed memory of GPUs that share the host's.

A device of its own memory has none that is quicker than a copy: its managed memory moves over the bus page by page.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor


class VisibleMemory(Protocol):
    """Memory of a device. Who uses a view orders it by events: the device may still write what it was given before."""

    def making(self) -> AbstractContextManager[object]:
        """Tensors that this thread makes on the device meanwhile are in such memory."""
        ...

    def view(self, values: Tensor) -> Tensor | None:
        """A host tensor over the memory of ``values``, which it keeps; None where that is memory of another kind."""
        ...


def visible_memory(device: torch.device) -> VisibleMemory | None:
    """That of ``device``, one of torch's, with its number; None where torch offers none. Raises `OSError` or
    `AttributeError` where a library lacks what is needed."""
    if device.type == "mps":
        return AppleMemory() if hasattr(torch.mps, "_host_alias_storage") else None
    return ManagedMemory() if device.type == "cuda" and is_integrated(device) else None


def is_integrated(device: torch.device) -> bool:
    """Whether a GPU's memory is the host's, as torch says."""
    if device.type == "mps":
        return True
    properties = torch.get_device_module(device).get_device_properties(device.index)
    return bool(getattr(properties, "is_integrated", False))


def same_layout(storage: Any, values: Tensor) -> Tensor:
    """``values`` in a host's ``storage``."""
    seen = torch.empty(0, dtype=values.dtype)
    return seen.set_(storage, values.storage_offset(), values.shape, values.stride())


class AppleMemory:
    """`VisibleMemory` of Apple's GPUs: all that torch allocates, where its buffers are shared ones."""

    def making(self) -> AbstractContextManager[object]:
        return nullcontext()

    def view(self, values: Tensor) -> Tensor | None:
        try:
            storage = torch.mps._host_alias_storage(values.untyped_storage())
        except RuntimeError:  # a private buffer
            return None
        return same_layout(storage, values)


class _Attributes(ctypes.Structure):
    """How cudaPointerGetAttributes and hipPointerGetAttributes (of ROCm 6 and newer) answer, with room for more."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("device_pointer", ctypes.c_void_p),
        ("host_pointer", ctypes.c_void_p),
        ("more", ctypes.c_byte * 128),
    )


_HOST, _MANAGED = 1, 3
"""Types of memory: page-locked host memory, and that which host and device share."""
_GLOBAL = 1
"""cudaMemAttachGlobal, hipMemAttachGlobal."""
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class ManagedMemory:
    """`VisibleMemory` of CUDA and ROCm: a pool of torch's allocator that takes managed memory.

    ``runtime``: their library, whose functions begin with ``prefix``; in doubt that which torch has loaded. Raises
    `OSError` without one."""

    def __init__(self, runtime: Any = None, prefix: str = "hip" if torch.version.hip else "cuda") -> None:
        library: Any = runtime or _loaded("libamdhip64" if prefix == "hip" else "libcudart")
        self._attributes = library[f"{prefix}PointerGetAttributes"]
        self._attributes.argtypes = (ctypes.POINTER(_Attributes), ctypes.c_void_p)
        self._allocate, self._free = library[f"{prefix}MallocManaged"], library[f"{prefix}Free"]
        self._allocate.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_uint)
        self._free.argtypes = (ctypes.c_void_p,)
        self._called = _ALLOCATE(self.allocate), _FREE(self.free)
        self._pool: Any = None

    def making(self) -> AbstractContextManager[object]:
        if self._pool is None:
            allocate, free = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in self._called)
            self._pool = torch.cuda.MemPool(torch._C._cuda_customAllocator(allocate, free))
        return torch.cuda.use_mem_pool(self._pool)

    def allocate(self, size: int, _device: int, _stream: int | None) -> int | None:
        """Address, or None, of which torch makes its error of memory that has ended."""
        address = ctypes.c_void_p()
        return None if self._allocate(ctypes.byref(address), size, _GLOBAL) else address.value

    def free(self, address: int, _size: int, _device: int, _stream: int | None) -> None:
        self._free(address)

    def view(self, values: Tensor) -> Tensor | None:
        storage, found = values.untyped_storage(), _Attributes()
        if not storage.nbytes() or self._attributes(ctypes.byref(found), storage.data_ptr()):
            return None
        if found.type not in (_HOST, _MANAGED) or not found.host_pointer:
            return None
        memory: Any = (ctypes.c_uint8 * storage.nbytes()).from_address(found.host_pointer)
        memory.storage = storage  # kept as long as the view
        return same_layout(torch.frombuffer(memory, dtype=torch.uint8).untyped_storage(), values)


def _loaded(name: str) -> ctypes.CDLL:
    """A library of this process. Raises `OSError` where there is none of that name."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if path and Path(path).name.startswith(name):
            return ctypes.CDLL(f"/{path}")
    raise OSError(f"torch has loaded no {name}")

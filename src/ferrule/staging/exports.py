"""Exports of GPU memory as dma-bufs, by the vendors' own libraries, which are opened when they are first needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

_BUFFER_ID = 7
"""CU_POINTER_ATTRIBUTE_BUFFER_ID, and HIP's of the same meaning: unique in a process, never given twice."""
_DMABUF = 1
"""CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD."""
_THIS_CONTEXT, _TO_OWNER = 0, 100
"""CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX and _TO_OWNER."""
_NOT_SUPPORTED = 801


@dataclass(frozen=True)
class Allocation:
    """Memory of a device as its driver gave it. ``identity``: another one where an address is given again."""

    base: int
    length: int
    identity: int


class Exporter(Protocol):
    """A driver's means to hand memory to others. Both raise `OSError` where it refuses."""

    def allocation(self, address: int) -> Allocation:
        """The one that holds ``address``."""
        ...

    def export(self, allocation: Allocation) -> tuple[int, int]:
        """A descriptor of a dma-buf, which the caller closes, and the offset in it at which ``allocation`` begins."""
        ...

    def received(self) -> None:
        """Have the device see what an adapter has written, in what it is given next."""
        ...


class _Driver:
    """Functions of a driver's library. Raises `OSError` where that, or one of them, is not there."""

    def __init__(self, name: str) -> None:
        self._library = ctypes.CDLL(name)
        self._name = name

    def call(self, function: str, *args: Any, accept: int = 0) -> None:
        """``accept``: a status beside 0 that is fine."""
        try:
            status = getattr(self._library, function)(*args)
        except AttributeError as error:
            raise OSError(f"{self._name} has no {function}: the driver is too old") from error
        if status not in (0, accept):
            raise OSError(f"{function} of {self._name} failed with status {status}")


class CudaExporter:
    """NVIDIA's driver, with open kernel modules from 515 on. The device must be current in the calling thread."""

    find_range, find_attribute = "cuMemGetAddressRange_v2", "cuPointerGetAttribute"

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._driver = _Driver(library)

    def allocation(self, address: int) -> Allocation:
        base, length, identity = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
        where = ctypes.c_uint64(address)
        self._driver.call(self.find_range, ctypes.byref(base), ctypes.byref(length), where)
        self._driver.call(self.find_attribute, ctypes.byref(identity), _BUFFER_ID, where)
        return Allocation(base.value, length.value, identity.value)

    def export(self, allocation: Allocation) -> tuple[int, int]:
        fd, base, length = ctypes.c_int(-1), ctypes.c_uint64(allocation.base), ctypes.c_size_t(allocation.length)
        self._driver.call("cuMemGetHandleForAddressRange", ctypes.byref(fd), base, length, _DMABUF, ctypes.c_uint64(0))
        return fd.value, 0

    def received(self) -> None:
        # Where it is not supported, what is launched after the completion sees the writes without it.
        self._driver.call("cuFlushGPUDirectRDMAWrites", _THIS_CONTEXT, _TO_OWNER, accept=_NOT_SUPPORTED)


class RocmExporter(CudaExporter):
    """AMD's driver: HIP knows allocations, ROCr exports them. Both are the ones that torch has loaded."""

    find_range, find_attribute = "hipMemGetAddressRange", "hipPointerGetAttribute"

    def __init__(self) -> None:
        super().__init__(_loaded("libamdhip64.so"))
        self._runtime = _Driver(_loaded("libhsa-runtime64.so"))

    def export(self, allocation: Allocation) -> tuple[int, int]:
        fd, offset = ctypes.c_int(-1), ctypes.c_uint64()
        base, length = ctypes.c_void_p(allocation.base), ctypes.c_size_t(allocation.length)
        self._runtime.call("hsa_amd_portable_export_dmabuf", base, length, ctypes.byref(fd), ctypes.byref(offset))
        return fd.value, offset.value

    def received(self) -> None:
        """A kernel that is launched later begins by dropping what its caches hold of memory."""


def _loaded(name: str) -> str:
    """Path of a library of this process. Raises `OSError`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if name in Path(path).name:
            return path
    raise OSError(f"torch has not loaded {name}")


EXPORTERS: dict[str, Callable[[], Exporter]] = {
    "cuda": lambda: CudaExporter() if torch.version.hip is None else RocmExporter(),
}
"""By the kind of device, as torch names it."""


@cache
def exporter_of(kind: str) -> Exporter:
    """Raises `OSError` where memory of such devices cannot be exported here."""
    if kind not in EXPORTERS:
        raise OSError(f"memory of {kind} is not exported")
    return EXPORTERS[kind]()

"""Compute backends behind one interface: torch on a GPU, or the built-in engine's products on processors."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ferrule._native import Compute, Matrix, kernel_instructions
from ferrule.errors import ConfigError
from ferrule.installation import pip_install
from ferrule.process.memory import memory_free

_TORCH_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_CODES = {"bf16": 0, "fp16": 1, "fp32": 2}
"""The native library's numbers of them."""
_HELD = {"fp16": np.float16, "fp32": np.float32}
_BLOCK = 16
"""Results are filled up to a multiple of it."""


class Backend(Protocol):
    """``unit``: "cpu", "cuda" (also ROCm) or "mps". ``title``: of what computes. ``by``: which library, with version.
    ``dtypes``: that it has."""

    unit: str
    title: str
    by: str
    dtypes: tuple[str, ...]

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        ...

    def linear(self, rows: int, outputs: int, inputs: int, dtype: str) -> Callable[[], object]:
        """A call of it multiplies ``rows`` rows with a weight of its own."""
        ...

    def small(self) -> Callable[[], object]:
        """The smallest operation."""
        ...

    def wait(self) -> None:
        """Until all that was called is done."""
        ...


def choose_backend(unit: str, threads: int) -> Backend:
    """``unit``: as above, or "auto": a GPU where torch finds one. Raises `ConfigError` where it is not there."""
    if unit == "cpu":
        return NativeBackend(threads)
    try:
        import torch
    except ImportError:
        if unit == "auto":
            return NativeBackend(threads)
        raise ConfigError(f"a device {unit!r} is reached through torch: {pip_install('engine')}") from None
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    found = next((name for name, is_there in there.items() if is_there), "cpu") if unit == "auto" else unit
    if found == "cpu":
        return NativeBackend(threads)
    if not there.get(found, False):
        known = ", ".join([*(name for name, is_there in there.items() if is_there), "cpu"])
        raise ConfigError(f"torch finds no device {unit!r} here, only {known}")
    return TorchBackend(found)


class TorchBackend:
    """A GPU: "cuda" (also ROCm) or "mps"."""

    def __init__(self, unit: str) -> None:
        import torch

        self._torch: Any = torch
        self.unit = unit
        self.title = torch.cuda.get_device_name() if unit == "cuda" else processor()
        self.by = f"torch {torch.__version__}"
        self.dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16")

    def memory(self) -> tuple[int, int]:
        if self.unit == "cuda":
            free, total = map(int, self._torch.cuda.mem_get_info())
            return free, total
        most = int(self._torch.mps.recommended_max_memory())
        return min(memory_free()[0], most), most

    def linear(self, rows: int, outputs: int, inputs: int, dtype: str) -> Callable[[], object]:
        torch = self._torch
        kind = getattr(torch, _TORCH_TYPES[dtype])
        # As large as a layer's, so that nothing overflows or becomes denormal.
        weight = torch.full((outputs, inputs), 1 / inputs, dtype=kind, device=self.unit)
        x = torch.ones((rows, inputs), dtype=kind, device=self.unit)
        return lambda: torch.nn.functional.linear(x, weight)

    def small(self) -> Callable[[], object]:
        x = self._torch.zeros(8, device=self.unit)
        return lambda: x.add_(1)

    def wait(self) -> None:
        getattr(self._torch, self.unit).synchronize()


class NativeBackend:
    """Processors, by the products of the built-in engine."""

    def __init__(self, threads: int) -> None:
        self.unit = "cpu"
        self.title = processor()
        self.by = f"ferrule's kernels ({kernel_instructions()})"
        self.dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16")
        self._compute = Compute(threads)

    def memory(self) -> tuple[int, int]:
        return memory_free()

    def linear(self, rows: int, outputs: int, inputs: int, dtype: str) -> Callable[[], object]:
        weight = Matrix(outputs, inputs, _CODES[dtype], 0, 0, 0, 0, 0)
        numbers = np.full((outputs, inputs), 1 / inputs, np.float32)
        held = (numbers.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else numbers.astype(_HELD[dtype])
        weight.pack_plain(0, outputs, held.ctypes.data, inputs)
        x, y = np.ones((rows, inputs), np.float32), np.empty((rows, -(-outputs // _BLOCK) * _BLOCK), np.float32)

        def multiply() -> object:
            self._compute.multiply([weight], x.ctypes.data, rows, inputs, y.ctypes.data, y.shape[1], False)
            return y

        return multiply

    def small(self) -> Callable[[], object]:
        return self.linear(1, _BLOCK, _BLOCK, "fp32")

    def wait(self) -> None:
        return None


def processor() -> str:
    """The processor's name, as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()

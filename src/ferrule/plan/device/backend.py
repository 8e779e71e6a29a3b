"""What computes, behind one interface: torch on a GPU or on processors, or numpy where there is no torch."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ferrule.errors import ConfigError
from ferrule.installation import pip_install
from ferrule.process.memory import memory_free

_TORCH_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


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
    """``unit``: as above, or "auto": the best that torch finds. Raises `ConfigError` where it is not there."""
    try:
        import torch
    except ImportError:
        if unit in ("auto", "cpu"):
            return NumpyBackend(threads)
        raise ConfigError(f"a device {unit!r} is reached through torch: {pip_install('engine')}") from None
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = next(name for name, is_there in there.items() if is_there) if unit == "auto" else unit
    if not there.get(found, False):
        known = ", ".join(name for name, is_there in there.items() if is_there)
        raise ConfigError(f"torch finds no device {unit!r} here, only {known}")
    return TorchBackend(found, threads)


class TorchBackend:
    def __init__(self, unit: str, threads: int) -> None:
        import torch

        self._torch: Any = torch
        self.unit = unit
        torch.set_num_threads(threads)
        self.title = torch.cuda.get_device_name() if unit == "cuda" else processor()
        self.by = f"torch {torch.__version__}"
        self.dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16")

    def memory(self) -> tuple[int, int]:
        free, total = memory_free()
        if self.unit == "cuda":
            gpu_free, gpu_total = map(int, self._torch.cuda.mem_get_info())
            return gpu_free, gpu_total
        if self.unit == "mps":
            most = int(self._torch.mps.recommended_max_memory())
            return min(free, most), most
        return free, total

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
        if self.unit != "cpu":
            getattr(self._torch, self.unit).synchronize()


class NumpyBackend:
    def __init__(self, threads: int) -> None:
        del threads  # its linear algebra was told by the environment
        self.unit = "cpu"
        self.title = processor()
        self.by = f"numpy {np.__version__}"
        self.dtypes: tuple[str, ...] = ("fp32",)

    def memory(self) -> tuple[int, int]:
        return memory_free()

    def linear(self, rows: int, outputs: int, inputs: int, dtype: str) -> Callable[[], object]:
        if dtype != "fp32":
            raise ConfigError(f"numpy does not compute in {dtype}: {pip_install('engine')}")
        weight = np.full((outputs, inputs), 1 / inputs, np.float32)
        x = np.ones((inputs, rows), np.float32)
        return lambda: weight @ x

    def small(self) -> Callable[[], object]:
        x = np.zeros(8, np.float32)
        return lambda: np.add(x, 1, out=x)

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

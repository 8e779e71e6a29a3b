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
    """``unit``: "cpu", or a kind of torch's devices and its number, such as "cuda:0" (also ROCm). ``title``: of what
    computes. ``by``: which library, with version. ``dtypes``: that it has.
    ``count``: of such devices here, where all of that kind are alike; else ``unlike``: the units of the others.
    ``unified``: its memory is the host's."""

    unit: str
    title: str
    by: str
    dtypes: tuple[str, ...]
    count: int
    unlike: tuple[str, ...]
    unified: bool

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        ...

    def linear(self, rows: int, outputs: int, inputs: int, dtype: str) -> Callable[[], object]:
        """A call of it multiplies ``rows`` rows with a weight of its own."""
        ...

    def small(self) -> Callable[[], object]:
        """The smallest operation."""
        ...

    def copies(self, size: int) -> tuple[Callable[[], object], Callable[[], object]] | None:
        """Calls that copy so many bytes from the host to the device and back; None where both are one."""
        ...

    def wait(self) -> None:
        """Until all that was called is done."""
        ...


def choose_backend(unit: str, threads: int) -> Backend:
    """``unit``: as above, or "auto": a GPU where torch finds one. Raises `ConfigError` where it is not there."""
    if unit == "cpu":
        return NativeBackend(threads)
    try:
        from ferrule.staging import ACCELERATORS, accelerators
    except ImportError:
        if unit == "auto":
            return NativeBackend(threads)
        raise ConfigError(f"a device {unit!r} is reached through torch: {pip_install('engine')}") from None
    there = {kind: accelerators(kind) for kind in ACCELERATORS}  # in this order for "auto"
    if unit == "auto":
        kind, number = next((name for name, count in there.items() if count), "cpu"), "0"
    else:
        kind, _, number = unit.partition(":")
    if kind == "cpu":
        return NativeBackend(threads)
    if not (number or "0").isdecimal() or int(number or 0) >= there.get(kind, 0):
        known = [f"{name}:{one}" for name, count in there.items() for one in range(count)]
        raise ConfigError(f"torch finds no device {unit!r} here, only {', '.join([*known, 'cpu'])}")
    return TorchBackend(kind, int(number or 0))


class TorchBackend:
    """A device of torch: one of `ACCELERATORS`, or any other that torch has, such as its "cpu" in tests."""

    def __init__(self, kind: str, number: int = 0) -> None:
        import torch

        self._torch: Any = torch
        self._kind, self._number = kind, number
        self._module: Any = torch.get_device_module(kind)
        self._device = torch.device(kind, number)
        self.unit = f"{kind}:{number}"
        self.title = self._module.get_device_name(number) if kind in ("cuda", "xpu") else processor()
        self.by = f"torch {torch.__version__}"
        self.count, self.unified = 1, kind == "mps"
        self.unlike: tuple[str, ...] = ()
        if kind in ("cuda", "xpu"):
            properties = self._module.get_device_properties(number)
            self.unified = bool(getattr(properties, "is_integrated", False))
            titles = [self._module.get_device_name(one) for one in range(self._module.device_count())]
            if set(titles) == {self.title}:
                self.count = len(titles)
            else:
                self.unlike = tuple(f"{kind}:{one}" for one in range(len(titles)) if one != number)
        self.dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16")

    def memory(self) -> tuple[int, int]:
        if self._kind in ("cuda", "xpu"):
            free, total = map(int, self._module.mem_get_info(self._number))
            return min(free, memory_free()[0]) if self.unified else free, total
        if self._kind != "mps":
            return memory_free()
        most = int(self._torch.mps.recommended_max_memory())
        return min(memory_free()[0], most), most

    def linear(self, rows: int, outputs: int, inputs: int, dtype: str) -> Callable[[], object]:
        torch = self._torch
        kind = getattr(torch, _TORCH_TYPES[dtype])
        # As large as a layer's, so that nothing overflows or becomes denormal.
        weight = torch.full((outputs, inputs), 1 / inputs, dtype=kind, device=self._device)
        x = torch.ones((rows, inputs), dtype=kind, device=self._device)
        return lambda: torch.nn.functional.linear(x, weight)

    def small(self) -> Callable[[], object]:
        x = self._torch.zeros(8, device=self._device)
        return lambda: x.add_(1)

    def copies(self, size: int) -> tuple[Callable[[], object], Callable[[], object]]:
        """By pinned memory, as ranks copy what they exchange."""
        host = self._torch.zeros(size, dtype=self._torch.uint8, pin_memory=self._kind in ("cuda", "xpu"))
        there = self._torch.zeros(size, dtype=self._torch.uint8, device=self._device)
        return lambda: there.copy_(host, non_blocking=True), lambda: host.copy_(there, non_blocking=True)

    def wait(self) -> None:
        if self._kind in ("cuda", "xpu"):
            self._module.synchronize(self._number)
        else:
            self._module.synchronize()


class NativeBackend:
    """Processors, by the products of the built-in engine."""

    def __init__(self, threads: int) -> None:
        self.unit = "cpu"
        self.title = processor()
        self.by = f"ferrule's kernels ({kernel_instructions()})"
        self.dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16")
        self.count, self.unified = 1, True
        self.unlike: tuple[str, ...] = ()
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

    def copies(self, size: int) -> None:
        return None

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

"""The choice between our own kernel and those of vendors, by products that are tried while a model is loaded.

A vendor's layout takes the place of ours, so one of the two is for all numbers of rows: the vendor's, where it is
right, takes no more memory, is faster for few rows and no slower for many. A trial is made once for each form of matrix
in a process; nothing is tried later, so steps can be captured. While a matrix is loaded both layouts of it are there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from ferrule.config import environment, uses_vendor_kernels
from ferrule.engine.weights.device_codes import TRIAL_ERRORS, DeviceCodes
from ferrule.engine.weights.vendors.int4pack import Int4Pack
from ferrule.engine.weights.vendors.int8pack import Int8Pack
from ferrule.engine.weights.vendors.vendor import Form, Vendor
from ferrule.engine.weights.vendors.vendor_matrix import VendorMatrix

_log = logging.getLogger(__name__)

VENDORS: tuple[Vendor, ...] = (Int4Pack(), Int8Pack())
FEW, MANY = 1, 256
"""Rows of the products that are tried: of a token, and of a part of a prompt."""
LEAST_GAIN = 0.95
"""Part of our own time that a vendor's for few rows must be below, so that noise does not choose."""
_COMPARED = 256
"""Outputs that are compared with those of the numbers."""
_ROUNDS, _REPEATS = 3, 5


class Ours(Protocol):
    """A matrix in our own layout. ``reordered``: its columns do not stand in their order."""

    packed: DeviceCodes
    dtype: torch.dtype
    bytes: int
    kernel: str
    reordered: bool

    def multiply(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Trial:
    """``few`` and ``many``: seconds of a product of so many rows; infinite where it cannot be used, as ``why`` says."""

    kernel: str
    few: float
    many: float
    why: str = ""


@dataclass(frozen=True)
class Choice:
    """``vendor``: None for our own kernel. ``trials``: ours first; empty where no vendor's fits."""

    vendor: Vendor | None = None
    trials: tuple[Trial, ...] = ()


Clock = Callable[[Callable[[], object], torch.device], float]


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """The least of some rounds, after one that is not counted."""
    best = float("inf")
    work()
    for _ in range(_ROUNDS):
        _wait(device)
        begin = time.perf_counter()
        for _ in range(_REPEATS):
            work()
        _wait(device)
        best = min(best, (time.perf_counter() - begin) / _REPEATS)
    return best


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class Chooser:
    """Choices made so far among ``vendors``. ``seconds``: of work, for tests."""

    def __init__(self, vendors: Sequence[Vendor], seconds: Clock = seconds_of) -> None:
        self._vendors, self._seconds = vendors, seconds
        self._made: dict[Form, Choice] = {}

    def choice(self, ours: Ours) -> Choice:
        """That for matrices of this form: tried on ``ours`` where it is the first."""
        if ours.reordered or not self._vendors:
            return Choice()
        form = Form.of(ours.packed, ours.dtype)
        if form not in self._made:
            self._made[form] = choice = self._try(ours, form)
            for trial in choice.trials[1:]:
                told = trial.why or ("taken" if choice.vendor and choice.vendor.name == trial.kernel else "no faster")
                _log.info("%s of %s x %s: %s", trial.kernel, form.outputs, form.columns, told)
        return self._made[form]

    def _try(self, ours: Ours, form: Form) -> Choice:
        fitting = [each for each in self._vendors if each.fits(form) and each.bytes(form) <= ours.bytes]
        if not fitting:
            return Choice()
        rows = _rows(FEW, form), _rows(MANY, form)
        numbers = ours.packed.numbers(lambda part: part[:_COMPARED])
        own = self._timed(ours.kernel, ours.multiply, rows)
        trials = [self._trial(each, ours, form, rows, numbers) for each in fitting]
        better = [
            (trial.few, vendor)
            for trial, vendor in zip(trials, fitting, strict=True)
            if trial.few < own.few * LEAST_GAIN and trial.many <= own.many
        ]
        vendor = min(better, key=lambda each: each[0])[1] if better else None
        return Choice(vendor, (own, *trials))

    def _trial(self, vendor: Vendor, ours: Ours, form: Form, rows: tuple[Tensor, Tensor], numbers: Tensor) -> Trial:
        never = float("inf")
        try:
            matrix = VendorMatrix(vendor, ours.packed, form.dtype)
            if matrix.bytes != vendor.bytes(form):
                return Trial(vendor.name, never, never, f"takes {matrix.bytes} bytes instead of {vendor.bytes(form)}")
            for x in rows:
                expected = x.float() @ numbers.T
                wrong = (matrix.multiply(x)[:, :_COMPARED].float() - expected).abs().max()
                error = float(wrong / expected.abs().max().clamp(min=1e-30))
                if not error < TRIAL_ERRORS[form.dtype]:
                    return Trial(vendor.name, never, never, f"is wrong by {error:.2g} of the largest number")
            return self._timed(vendor.name, matrix.multiply, rows)
        except Exception as error:  # noqa: BLE001 - a library of others raises whatever it likes
            return Trial(vendor.name, never, never, f"{type(error).__name__}: {error}"[:500])

    def _timed(self, name: str, multiply: Callable[[Tensor], Tensor], rows: tuple[Tensor, Tensor]) -> Trial:
        few, many = rows
        device = few.device
        return Trial(name, self._seconds(lambda: multiply(few), device), self._seconds(lambda: multiply(many), device))


@cache
def chooser() -> Chooser:
    """This process's. Raises `ConfigError` where ``FERRULE_VENDOR_KERNELS`` is no choice."""
    return Chooser(VENDORS if uses_vendor_kernels(environment()) else ())


def _rows(count: int, form: Form) -> Tensor:
    numbers = torch.randn(count, form.columns, generator=torch.Generator().manual_seed(count))
    return numbers.to(form.device, form.dtype)

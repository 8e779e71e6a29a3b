"""Vendors' kernels: which is taken, and that torch's own on the processor give the numbers of the formats."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ferrule.config import uses_vendor_kernels
from ferrule.engine.devices import open_device
from ferrule.engine.selftest import device_check
from ferrule.engine.selftest.device_check import random_groups
from ferrule.engine.weights import device_matrix
from ferrule.engine.weights.device_codes import TRIAL_ERRORS, Held
from ferrule.engine.weights.device_matrix import DeviceMatrix, hold, pack_on
from ferrule.engine.weights.groups import GroupedMatrix, Rectangle, rectangle
from ferrule.engine.weights.matrix import Piece
from ferrule.engine.weights.vendors import choice
from ferrule.engine.weights.vendors.choice import VENDORS, Chooser, chooser
from ferrule.engine.weights.vendors.int4pack import Int4Pack
from ferrule.engine.weights.vendors.int8pack import Int8Pack
from ferrule.engine.weights.vendors.vendor import Form, Prepared, Vendor
from ferrule.engine.weights.vendors.vendor_matrix import VendorMatrix
from ferrule.errors import ConfigError
from ferrule.model.packing import GroupLayout
from ferrule.staging import Uploads

CPU = torch.device("cpu")
BYTES = GroupLayout(8, 0, "f32", zero=128)
OUTPUTS, COLUMNS = 48, 256


class Fake:
    """A vendor of plain numbers in float32, which says that they are as small as ours. ``times``: what is multiplied
    wrongly with ``many`` rows, or with few."""

    def __init__(self, name: str, few: float = 1, many: float = 1, times: tuple[float, float] = (1, 1)) -> None:
        self.name, self.few, self.many, self.times = name, few, many, times
        self.size: int | None = None

    def fits(self, form: Form) -> bool:
        return form.group == 0

    def bytes(self, form: Form) -> int:
        return self.size or form.outputs * (form.columns + 4)

    def prepare(self, held: Held, form: Form) -> Prepared:
        return held.codes.view(torch.int8) ^ -128, held.scales.clone()

    def multiply(self, prepared: Prepared, form: Form, x: Tensor) -> Tensor:
        codes, scales = prepared
        return x @ (codes.to(x.dtype) * scales.to(x.dtype)).T * self.times[x.shape[0] > 1]


class Broken(Fake):
    def multiply(self, prepared: Prepared, form: Form, x: Tensor) -> Tensor:
        raise NotImplementedError("not for this GPU")


class Bench:
    """A clock by which products of ours take 10 for few rows and 20 for many, and those of fakes what they say."""

    def __init__(self, *fakes: Fake) -> None:
        self.times = [10.0, 20.0, *(time for fake in fakes for time in (fake.few, fake.many))]

    def __call__(self, work: Callable[[], object], device: torch.device) -> float:
        work()
        return self.times.pop(0)


def matrix(layout: GroupLayout = BYTES, dtype: torch.dtype = torch.float32) -> DeviceMatrix:
    return hold(random_groups(layout, OUTPUTS, COLUMNS), dtype, CPU)


@pytest.mark.parametrize(
    ("fake", "why"),
    [
        (Fake("slow", 12, 12), ""),
        (Fake("as fast as ours, within noise", 9.8, 12), ""),
        (Fake("slow for many rows", 1, 21), ""),
        (Fake("wrong", times=(1.01, 1.01)), "is wrong by 0.01"),
        (Fake("wrong for one row", times=(1.01, 1)), "is wrong by 0.01"),
        (Fake("no number", times=(1, float("nan"))), "is wrong by nan"),
        (Broken("broken"), "NotImplementedError: not for this GPU"),
    ],
    ids=lambda each: each.name if isinstance(each, Fake) else "",
)
def test_what_is_slow_wrong_or_raises_is_not_taken(fake: Fake, why: str) -> None:
    found = Chooser((fake,), Bench(*(() if why else (fake,)))).choice(matrix())
    assert found.vendor is None
    ours, tried = found.trials
    assert (ours.kernel, ours.few, ours.many) == ("torch's operations", 10, 20)
    assert tried.kernel == fake.name
    assert why in tried.why
    assert bool(why) == (tried.few == float("inf"))


def test_the_fastest_is_taken_and_tried_once_for_each_form() -> None:
    fakes = Fake("fast", 5, 5), Fake("faster", 4, 20)
    clock = Bench(*fakes)
    some = Chooser(fakes, clock)
    assert some.choice(matrix()).vendor is fakes[1]
    assert some.choice(matrix()).vendor is fakes[1]
    assert clock.times == [], "nothing is tried again"
    with pytest.raises(IndexError):
        some.choice(matrix(dtype=torch.bfloat16))


def test_a_layout_of_more_bytes_than_ours_is_not_made() -> None:
    fake = Fake("large", 1, 1)
    fake.size = OUTPUTS * (COLUMNS + 4) + 1
    assert Chooser((fake,), Bench(fake)).choice(matrix()).trials == ()
    fake.size = 1
    (_, tried) = Chooser((fake,), Bench()).choice(matrix()).trials
    assert "takes 12480 bytes instead of 1" in tried.why


def test_columns_in_another_order_are_left_to_ours() -> None:
    ours = matrix()
    ours.reordered = True
    assert Chooser((Fake("fast"),), Bench()).choice(ours).trials == ()


@pytest.mark.parametrize(
    ("vendor", "layout"),
    [
        *((Int8Pack(), GroupLayout(8, 0, scale, zero=128)) for scale in ("f32", "f16", "bf16")),
        *((Int4Pack(), GroupLayout(4, group, "bf16", offsets=True)) for group in (32, 64)),
        *((Int4Pack(), GroupLayout(4, 128, scale, offsets=True)) for scale in ("f32", "f16")),
    ],
)
def test_torchs_own_kernels_give_the_numbers_and_take_as_many_bytes(vendor: Vendor, layout: GroupLayout) -> None:
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[layout.scale]
    ours = matrix(layout, dtype)
    form = Form.of(ours.packed, dtype)
    assert vendor.fits(form)
    found = VendorMatrix(vendor, ours.packed, dtype)
    assert found.bytes == vendor.bytes(form) == ours.bytes
    assert (found.shape, found.dtype, found.kernel) == (ours.shape, dtype, vendor.name)
    numbers = torch.from_numpy(random_groups(layout, OUTPUTS, COLUMNS).numbers())
    for rows in (0, 1, 7):
        x = torch.randn(2, rows, COLUMNS, generator=torch.Generator().manual_seed(rows)).to(dtype)
        y = found.multiply(x)
        assert (y.shape, y.dtype) == ((2, rows, OUTPUTS), dtype)
        if rows:
            expected = x.float() @ numbers.T
            assert (y.float() - expected).abs().max() / expected.abs().max() < TRIAL_ERRORS[dtype]
    other = found.multiply(torch.ones(1, COLUMNS, dtype=torch.float64))
    assert other.dtype == torch.float64


@pytest.mark.parametrize(
    "layout",
    [
        GroupLayout(8, 0, "f16", zero=128),  # scales would be rounded
        GroupLayout(8, 32, "bf16", zero=128),
        GroupLayout(8, 0, "bf16", values="e4m3"),
        GroupLayout(4, 64, "bf16", offsets=True, zero_points=True),  # torch's needs more bytes
        GroupLayout(4, 64, "bf16", zero=8),
        GroupLayout(4, 16, "bf16", offsets=True),
        GroupLayout(4, 32, "f16", offsets=True, nested=True),
    ],
)
def test_forms_that_they_do_not_take(layout: GroupLayout) -> None:
    form = Form.of(matrix(layout, torch.bfloat16).packed, torch.bfloat16)
    assert not any(vendor.fits(form) for vendor in VENDORS)


class Whole(Piece):
    """A piece whose groups are given."""

    def __init__(self, given: GroupedMatrix) -> None:
        object.__setattr__(self, "given", given)

    @property
    def part(self) -> Rectangle:
        return rectangle(self.given.codes.shape, None)  # type: ignore[attr-defined]

    def groups(self, part: Rectangle, source: object) -> GroupedMatrix:
        return self.given  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("allowed", ["1", "0"])
def test_a_weight_is_held_as_the_choice_and_the_setting_say(allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake("fast", 1, 1)
    monkeypatch.setenv("FERRULE_VENDOR_KERNELS", allowed)
    monkeypatch.setattr(choice, "VENDORS", (fake,))
    monkeypatch.setattr(choice, "Chooser", lambda vendors: Chooser(vendors, Bench(fake)))
    monkeypatch.setattr(device_matrix, "chooser", chooser.__wrapped__)
    groups = random_groups(BYTES, OUTPUTS, COLUMNS)
    held = pack_on(Whole(groups), None, torch.float32, Uploads(CPU))  # type: ignore[arg-type]
    assert held is not None
    assert isinstance(held, VendorMatrix if allowed == "1" else DeviceMatrix)
    assert held.kernel == ("fast" if allowed == "1" else "torch's operations")
    assert held.bytes == OUTPUTS * (COLUMNS + 4)
    found = torch.nn.functional.linear(torch.eye(COLUMNS), held)  # type: ignore[arg-type]
    assert torch.allclose(found.T, torch.from_numpy(groups.numbers()), rtol=1e-6)


def test_the_setting_is_one_or_zero() -> None:
    assert uses_vendor_kernels({})
    assert not uses_vendor_kernels({"FERRULE_VENDOR_KERNELS": "0"})
    with pytest.raises(ConfigError, match="FERRULE_VENDOR_KERNELS"):
        uses_vendor_kernels({"FERRULE_VENDOR_KERNELS": "yes"})


def test_the_self_check_tells_which_is_taken_and_the_speed_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "_WIDTH", 128)
    monkeypatch.setattr(device_check, "_ROUNDS", 1)
    monkeypatch.setattr(device_check, "chooser", lambda: Chooser(VENDORS))
    for name, kernel in (("int8 by rows", "torch int8pack"), ("MLX", "torch int4pack")):
        found = device_check._packed(name, open_device("cpu", 1), device_check._PACKED[name])
        assert found.ok, found.detail
        assert found.kernel in (kernel, "torch's operations")
        assert found.numbers[f"{kernel.replace(' ', '_')}_one_row_gb_s"] > 0
        assert found.numbers["one_row_gb_s"] > 0

"""Uploads of weights arrive whole, in pieces, and the host never runs far ahead of the device."""

from __future__ import annotations

import gc

import pytest
import torch
from plugged import plug_in

from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.staging import Uploads, uploads


@pytest.fixture(params=[None, 3])
def machine(request: pytest.FixtureRequest) -> Machine:
    """As late as can be, or in a random order."""
    open_device("emulated", 1)
    return plug_in(Machine(0, seed=request.param))


@pytest.mark.parametrize("shape", [(), (0,), (5,), (1000,), (7, 40), (3, 300), (2, 3, 500), (2, 0, 3)])
def test_values_arrive_in_the_type_of_the_tensor(
    shape: tuple[int, ...], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "UPLOAD_BYTES", 600)
    device = open_device("emulated:0", 1)
    values = torch.randn(shape)
    expected = values.bfloat16()
    into = device.empty(shape, torch.bfloat16)
    writer = Uploads(into.device)
    writer.write(into, values)
    values.fill_(float("nan"))  # it was read
    again = torch.randn(4, 6)
    wide = device.empty((4, 8), torch.float32)
    writer.write(wide.narrow(1, 1, 6), again)
    assert machine.waits == {}, "the host waits for events only"
    assert torch.equal(device.download(wide)[:, 1:7], again)
    found = device.download(into)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, expected)


def test_the_host_is_some_pieces_ahead_and_no_more(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "UPLOAD_BYTES", 100)
    into = open_device("emulated:0", 1).empty((1000,), torch.float32)
    Uploads(into.device).write(into, torch.randn(1000))
    gc.collect()
    assert len(machine._pinned) <= uploads._UNDER_WAY + 1


def test_other_shapes_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"expected shape \(3,\), not \(4,\)"):
        Uploads(torch.device("cpu")).write(torch.empty(3), torch.empty(4))

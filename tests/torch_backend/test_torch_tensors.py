"""Addresses and devices of torch tensors, asked in C and by their attributes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ferrule import _native, fabric
from ferrule.config import fabric_settings
from ferrule.fabric import arrays

TYPES = [getattr(torch, name) for name in _native.DTYPES]
OTHERS = [torch.complex64, torch.float8_e4m3fn]
BASE = torch.arange(24.0).view(2, 3, 4)

TENSORS: dict[str, Tensor] = {
    **{str(dtype): torch.zeros(3).to(dtype) for dtype in [*TYPES, *OTHERS]},
    "scalar": torch.tensor(1.0),
    "empty": torch.zeros(0),
    "empty, turned": torch.zeros(3, 0, 2).transpose(0, 2),
    "three axes": BASE,
    "from the middle": BASE[1],
    "turned": BASE.transpose(0, 1),
    "turned, but of one row": BASE[:1].transpose(0, 1),
    "every second": BASE.view(-1)[::2],
    "spread": torch.ones(1).expand(3),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "other device": torch.ones(3, device="meta"),
    "sparse": torch.ones(3).to_sparse(),
}


@pytest.mark.skipif(not hasattr(Tensor, "__dlpack_c_exchange_api__"), reason="torch before 2.10")
@pytest.mark.parametrize("name", TENSORS)
def test_both_ways_find_the_same(name: str) -> None:
    assert arrays.tensor_finder() is _native.locate_tensor
    assert _native.locate_tensor(TENSORS[name]) == arrays._find_by_attributes(TENSORS[name])


@pytest.mark.parametrize("sparse", [torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()], ids=["coo", "csr"])
def test_sparse_tensors_are_refused_with_the_cure(sparse: Tensor) -> None:
    with fabric.init(settings=fabric_settings({})) as group, pytest.raises(TypeError, match=r"sparse.*to_dense"):
        group.all_reduce(sparse)
    assert arrays._find_by_attributes(sparse) is None


def test_host_memory_that_dlpack_counts_as_a_devices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pinned memory may be, in which tensors of GPUs are staged."""
    monkeypatch.setattr(arrays, "_find_tensor", lambda tensor: None)
    x = torch.arange(6.0)
    assert arrays.locate(x, writable=True) == arrays._find_by_attributes(x)
    with pytest.raises(ValueError, match="not contiguous"):
        arrays.locate(x[::2], writable=True)


def test_what_is_no_tensor() -> None:
    arrays.tensor_finder()
    assert _native.locate_tensor(3) is None
    assert _native.locate_tensor([torch.ones(1)]) is None


def test_a_foreign_table_is_refused() -> None:
    with pytest.raises(ValueError, match="PyCapsule"):
        _native.know_tensors(Tensor, 3)

"""Memory that device and host see: found, tried before it is used, and left alone where it is wrong or slow."""

from __future__ import annotations

import ctypes
import gc
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from ferrule.staging.trial import objection
from ferrule.staging.visible import AppleMemory, ManagedMemory, is_integrated, visible_memory

CPU = torch.device("cpu")


class Counted:
    """A device whose tensors are the host's, and a clock that pinned memory makes go on."""

    torch_device = CPU
    seconds = 0.0

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.seconds += 1e-5
        return torch.empty(shape, dtype=dtype)

    def record(self) -> Any:
        return self

    def synchronize(self) -> None:
        return

    def clock(self) -> float:
        return self.seconds


class Seen:
    def __init__(self, view: Any) -> None:
        self.view = view

    def making(self) -> AbstractContextManager[object]:
        return nullcontext()


class SlowTensor(Tensor):
    """A view whose use takes time, as of pages that move to the host and back. ``counted``: whose clock that is."""

    counted: Counted

    def add_(self, *args: Any) -> Tensor:  # type: ignore[override]
        self.counted.seconds += 2e-5
        return super().add_(*args)


def test_a_trial_compares_both_ways_and_the_time() -> None:
    device = Counted()

    def slow(values: Tensor) -> Tensor:
        made = values.as_subclass(SlowTensor)
        made.counted = device
        return made

    def tried(view: Any) -> str:
        return objection(Seen(view), device, device.clock)

    assert tried(lambda values: values) == ""
    assert "does not see" in tried(lambda values: None)
    assert "the host sees other values" in tried(torch.zeros_like)
    assert "the device sees other values" in tried(torch.clone)
    assert tried(slow) == "an exchange took 20 µs in place, 10 µs with copies"


class Runtime:
    """cudaMallocManaged and what belongs to it, over the host's memory."""

    def __init__(self) -> None:
        self.kind, self.failing, self.blocks = 3, 0, dict[int, Any]()

    def __getitem__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            return int(getattr(self, name)(*args))

        return call

    def cudaMallocManaged(self, into: Any, size: int, flags: int) -> int:  # noqa: N802 (CUDA's)
        block = ctypes.create_string_buffer(size)
        into._obj.value = ctypes.addressof(block)
        self.blocks[ctypes.addressof(block)] = block
        return self.failing

    def cudaFree(self, address: int) -> int:  # noqa: N802
        self.blocks.pop(address)
        return 0

    def cudaPointerGetAttributes(self, into: Any, address: int) -> int:  # noqa: N802
        into._obj.type, into._obj.host_pointer = self.kind, address
        return self.failing


def test_managed_memory_is_taken_given_back_and_seen() -> None:
    runtime = Runtime()
    memory = ManagedMemory(runtime, "cuda")
    allocate, free = memory._called
    address = allocate(64, 0, None)
    assert list(runtime.blocks) == [address]
    free(address, 64, 0, None)
    assert runtime.blocks == {}
    values = torch.arange(12.0).reshape(3, 4)[1:].t()
    seen = memory.view(values)
    assert seen is not None
    assert (seen.data_ptr(), seen.stride(), seen.storage_offset()) == (values.data_ptr(), (1, 4), 4)
    assert torch.equal(seen, values)
    alive = weakref.ref(seen.untyped_storage())
    kept = torch.full((1 << 20,), 7.0)
    seen = memory.view(kept)
    del kept, values
    gc.collect()
    assert seen is not None
    assert alive() is None
    assert bool((seen == 7).all()), "the view keeps it"
    assert memory.view(torch.empty(0)) is None
    runtime.kind = 2
    assert memory.view(torch.ones(2)) is None, "the device's own"
    runtime.kind, runtime.failing = 3, 1
    assert memory.view(torch.ones(2)) is None
    assert memory.allocate(64, 0, None) is None


def test_apples_memory_is_seen_through_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    def private(storage: Any) -> Any:
        raise RuntimeError("a private buffer")

    values = torch.arange(6.0)[2:]
    monkeypatch.setattr(torch.mps, "_host_alias_storage", lambda storage: storage, raising=False)
    seen = AppleMemory().view(values)
    assert seen is not None
    assert torch.equal(seen, values)
    assert seen.data_ptr() == values.data_ptr()
    apple = torch.device("mps", 0)
    assert is_integrated(apple)
    assert isinstance(visible_memory(apple), AppleMemory)
    monkeypatch.setattr(torch.mps, "_host_alias_storage", private)
    assert AppleMemory().view(values) is None
    monkeypatch.delattr(torch.mps, "_host_alias_storage")
    assert visible_memory(apple) is None


def test_torch_has_loaded_no_library_of_a_gpu_here() -> None:
    if torch.cuda.is_available():
        pytest.skip("it has")
    with pytest.raises(OSError, match="torch has loaded no lib"):
        ManagedMemory()

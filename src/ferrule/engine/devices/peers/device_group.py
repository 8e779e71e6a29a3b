"""The protocol of collectives that devices of one host do by themselves, and torch's implementations of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store

_NO_SOONER = timedelta(hours=1)
"""torch ends a process whose collective takes longer; the failure detector of the fabric does so much sooner."""
_SETTINGS = {
    "NCCL_SOCKET_IFNAME": "lo",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""The ranks are of one host; and it is not torch that ends them where one is lost."""


class DeviceGroup(Protocol):
    """Some ranks of one host, numbered from 0. Calls start work on the current streams of their devices; the host waits
    for none. Where a peer is lost what was started need not end before `abort`. Raises `RuntimeError`."""

    def all_reduce(self, x: Tensor) -> None:
        """Sum in place, with the same bits on all."""
        ...

    def broadcast(self, x: Tensor, root: int) -> None: ...

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        """``out``: (size * n, …) for (n, …) of each."""
        ...

    def abort(self) -> None:
        """End what was started, whatever it has computed. From any thread, more than once."""
        ...


def torch_backend(kind: str) -> str:
    """Name of the backend that this torch has for devices of ``kind``, RCCL's ``nccl``, too; empty without one. Intel's
    XCCL is left out: it cannot abort (intel/torch-xpu-ops#5071), so a lost rank would stop the others for good."""
    return "nccl" if kind == "cuda" and dist.is_available() and dist.is_nccl_available() else ""


def nccl(device: torch.device, store: Store, rank: int, size: int) -> Any:
    """torch's backend object for this rank."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    torch.accelerator.set_device_index(device.index)  # of this thread
    kind: Any = getattr(dist, "ProcessGroupNCCL")  # noqa: B009 (not in every torch)
    options = kind.Options()
    options._timeout = _NO_SOONER
    return kind(store, rank, size, options)


class TorchPeers:
    """`DeviceGroup` by a backend object of torch, which ``make`` makes, given a store, the rank and the size.
    ``directory``: one that only these ranks know."""

    def __init__(self, directory: Path, rank: int, size: int, make: Callable[[Store, int, int], Any]) -> None:
        self._group = make(FileStore(str(directory / "store"), size), rank, size)

    def all_reduce(self, x: Tensor) -> None:
        self._group.allreduce([x]).wait()  # has the stream wait, not the host

    def broadcast(self, x: Tensor, root: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._group.broadcast([x], options).wait()

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        self._group._allgather_base(out, x).wait()

    def abort(self) -> None:
        self._group.abort()

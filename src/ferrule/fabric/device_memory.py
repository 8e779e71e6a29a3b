"""Messages of arrays in the memory of a device, which an RDMA adapter reads and writes by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ferrule._native import OPS, DeviceRegion, Operation
from ferrule.fabric.arrays import locate
from ferrule.fabric.core import Core


@dataclass(frozen=True)
class DeviceArray:
    """``count`` elements at ``address``, in a ``region`` of `DeviceMessages.register_memory`. ``dtype``: the code of
    their type, as `locate` gives it for host memory."""

    region: DeviceRegion
    address: int
    count: int
    dtype: int


class DeviceMessages:
    """Part of `Group`. The host never touches the memory. That the device is done with it, and sees what has come, is
    for the caller to see to."""

    _core: Core

    def register_memory(self, peer: int, fd: int, offset: int, length: int, address: int) -> DeviceRegion:
        """``length`` bytes of the dma-buf ``fd``, which the device has at ``address``, for messages with ``peer``.

        The region holds the memory as long as there are references to it; ``fd`` may be closed. Raises `OSError` where
        ``peer`` is not reached by RDMA over a queue pair of type RC, or library, driver or adapter refuse the dma-buf.
        """
        return self._core.native.register_memory(peer, fd, offset, length, address)

    def send_device(self, x: DeviceArray, dst: int, *, timeout: float | None = None, blocking: bool = True) -> Any:
        """As `Group.send`; ``dst`` may receive it in host memory. It is done when the adapter has read ``x``, which for
        long messages is not before ``dst`` asks for it."""
        operation = Operation(OPS["send"], x.dtype, root=dst, count=x.count, region=x.region, device=x.address)
        return self._core.run(operation, None, (x, operation), timeout, blocking)

    def recv_device(
        self, x: DeviceArray, host: Any, src: int, *, timeout: float | None = None, blocking: bool = True
    ) -> Any:
        """Receive what ``src`` sent into ``x``, or into ``host``, an array like it: there if ``src`` sends from host
        memory, or began before it knew of this call. Returns an object whose ``placed``, when the operation is done,
        says that it was ``x``."""
        address, count, dtype = locate(host, writable=True)
        if (count, dtype) != (x.count, x.dtype):
            raise ValueError(f"host has {count} elements of type {dtype}, but x has {x.count} of type {x.dtype}")
        operation = Operation(OPS["recv"], dtype, 0, src, 0, address, count, region=x.region, device=x.address)
        return self._core.run(operation, operation, (x, host, operation), timeout, blocking)

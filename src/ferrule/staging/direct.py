"""Messages of device tensors that an RDMA adapter reads and writes in place, where driver, library and adapter can."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ferrule._native import DTYPES, DeviceRegion
from ferrule.fabric import DeviceArray, Group, Work
from ferrule.staging.copier import Copier
from ferrule.staging.exports import EXPORTERS, Allocation, Exporter, exporter_of
from ferrule.staging.pieces import Piece

DIRECT_BYTES = 64 << 10
"""Below, waiting for the device and the adapter is as long as the copy that it saves."""
_MOST_REGIONS = 64
"""Of a group: torch gets memory from the driver in few large pieces. Each is registered whole, once."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DirectTensor:
    """A tensor whose memory ``group`` can move from and to ``peer``. `send` and `receive` take ``timeout`` and
    ``blocking`` as operations of a group do."""

    group: Group
    peer: int
    tensor: Tensor
    array: DeviceArray
    exporter: Exporter
    copier: Copier

    def send(self, **how: Any) -> Any:
        return self.group.send_device(self.array, self.peer, **how)

    def receive(self) -> DirectReceipt:
        return DirectReceipt(self, Piece(self.copier, self.tensor))


class DirectReceipt:
    """A receive into a `DirectTensor`, or into the host memory of ``piece`` if that is where the sender sent it."""

    def __init__(self, direct: DirectTensor, piece: Piece) -> None:
        self._direct, self._piece = direct, piece
        self._operation: Any = None

    def start(self, **how: Any) -> Any:
        direct = self._direct
        self._operation = direct.group.recv_device(direct.array, self._piece.host, direct.peer, **how)
        return self._operation

    def home(self) -> Tensor:
        """The tensor, when it is done: what the device is given next on the current stream finds there what came."""
        operation = self._operation.wait() if isinstance(self._operation, Work) else self._operation
        if not operation.placed:
            return self._piece.home()
        self._direct.exporter.received()
        return self._direct.tensor


class DirectMessages:
    """Registered memory of a group's device tensors, the last used of it. What cannot be registered is told once, and
    goes through pinned host memory from then on."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._regions: OrderedDict[tuple[int, Allocation], DeviceRegion] = OrderedDict()
        self._peers = {peer.rank for peer in group.describe().peers if peer.transport == "verbs"}

    def find(self, x: Tensor, peer: int, copier: Copier) -> DirectTensor | None:
        """None where ``x`` is to be copied. Else the device has done what it was given so far."""
        code = DTYPES.get(str(x.dtype).removeprefix("torch."))
        usable = peer in self._peers and x.device.type in EXPORTERS
        if not usable or x.nbytes < DIRECT_BYTES or code is None or not x.is_contiguous():
            return None
        copier.record().synchronize()
        try:
            exporter = exporter_of(x.device.type)
            region = self._region(exporter, exporter.allocation(x.data_ptr()), peer)
        except OSError as error:
            self._peers.discard(peer)
            _log.warning("tensors on %s go to and from rank %d through host memory: %s", x.device, peer, error)
            return None
        array = DeviceArray(region, x.data_ptr(), x.numel(), code)
        return DirectTensor(self._group, peer, x, array, exporter, copier)

    def _region(self, exporter: Exporter, allocation: Allocation, peer: int) -> DeviceRegion:
        key = (peer, allocation)
        if key in self._regions:
            self._regions.move_to_end(key)
            return self._regions[key]
        for other in [each for each in self._regions if each[1].base == allocation.base and each[1] != allocation]:
            del self._regions[other]  # of memory that the driver has given out again
        fd, offset = exporter.export(allocation)
        try:
            while True:
                try:
                    region = self._group.register_memory(peer, fd, offset, allocation.length, allocation.base)
                    break
                except OSError:
                    if not self._regions:
                        raise
                    self._regions.popitem(last=False)  # the adapter may have no room
        finally:
            os.close(fd)
        self._regions[key] = region
        if len(self._regions) > _MOST_REGIONS:
            self._regions.popitem(last=False)
        return region

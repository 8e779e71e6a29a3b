"""Exchange between emulated accelerators of one host, each of a process of its own: over Unix sockets to the first.

It works when it is started, as a device may. Like a vendor's library it notices no lost peer: an exchange lasts until
it is aborted, and then seems done, with numbers that spoil what is computed from them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ferrule.engine.devices.emulated.machine import Machine, poison
from ferrule.engine.devices.emulated.tensor import EmulatedTensor

_CONNECT = 30.0
"""Seconds in which all must be connected."""
_LOOK = 0.01
_FOREVER = 600.0
Combine = Callable[[Sequence[Tensor]], Tensor]


class EmulatedPeers:
    """`DeviceGroup`. ``owner``: this rank's accelerator. Raises `OSError` where the others do not come."""

    def __init__(self, owner: Machine, directory: Path, rank: int, size: int) -> None:
        self._owner, self._aborted = owner, threading.Event()
        address = str(directory / "peers")
        self._others = _accepted(address, size - 1) if rank == 0 else [_connected(address, rank)]
        self._first = rank == 0

    def all_reduce(self, x: Tensor) -> None:
        self._exchange(x, x, lambda parts: _sum(parts).to(x.dtype))

    def broadcast(self, x: Tensor, root: int) -> None:
        self._exchange(x, x, lambda parts: parts[root])

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        self._exchange(x, out, lambda parts: torch.cat(list(parts)))

    def abort(self) -> None:
        self._aborted.set()
        for each in self._others:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _exchange(self, x: Tensor, out: Tensor, combine: Combine) -> None:
        assert isinstance(x, EmulatedTensor)
        assert isinstance(out, EmulatedTensor)
        self._owner.check()
        if self._aborted.is_set():
            raise RuntimeError("the communicator was aborted")
        self._owner.launches += 1
        self._owner.timeline.catch_up()
        try:
            if self._first:
                found = combine([x.cells, *(_receive(each, x.cells) for each in self._others)])
                for each in self._others:
                    each.sendall(_bytes(found))
            else:
                self._others[0].sendall(_bytes(x.cells))
                found = _receive(self._others[0], out.cells)
            out.cells.copy_(found)
        except OSError:
            self._aborted.wait(_FOREVER)
            poison(out.cells)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0].float() if parts[0].is_floating_point() else parts[0].clone()
    for part in parts[1:]:
        total = total + part
    return total


def _bytes(values: Tensor) -> memoryview:
    return memoryview(values.detach().contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _receive(other: socket.socket, like: Tensor) -> Tensor:
    """As many values as ``like`` has. Raises `OSError` where they do not come."""
    found = torch.empty(like.shape, dtype=like.dtype)
    left = _bytes(found)
    while left:
        count = other.recv_into(left)
        if not count:
            raise ConnectionError("a peer is gone")
        left = left[count:]
    return found


def _accepted(address: str, count: int) -> list[socket.socket]:
    """The others' sockets, by their rank."""
    end = time.monotonic() + _CONNECT
    found: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(count)
        while len(found) < count:
            listener.settimeout(max(_LOOK, end - time.monotonic()))
            other, _ = listener.accept()
            other.settimeout(_CONNECT)
            found[other.recv(1)[0]] = other
            other.settimeout(None)
    return [found[rank] for rank in sorted(found)]


def _connected(address: str, rank: int) -> socket.socket:
    end = time.monotonic() + _CONNECT
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            made.close()
            if time.monotonic() > end:
                raise
            time.sleep(_LOOK)
        else:
            made.sendall(bytes([rank]))
            return made

"""Two ranks whose "devices" are files in memory, over an emulated adapter: run by test_direct.py, with its libraries.

Where it says ``hidden``, this process has mapped a file without any right: what touches it but the adapter crashes.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "fabric"))

from in_threads import on_all, thread_groups  # noqa: E402

from ferrule import _native  # noqa: E402
from ferrule.engine.devices.graphs import Graphs  # noqa: E402
from ferrule.engine.devices.peers.device_group import DeviceGroup  # noqa: E402
from ferrule.engine.devices.staged import StagedDevice  # noqa: E402
from ferrule.fabric import Group  # noqa: E402
from ferrule.staging import exports, offer_copier  # noqa: E402
from ferrule.torch_backend.process_group import FabricProcessGroup  # noqa: E402

FOLDER = Path(sys.argv[1])
COUNT = 100_000
ADAPTER, CUDA = ctypes.CDLL(str(FOLDER / "libibverbs.so.1")), ctypes.CDLL(str(FOLDER / "libcuda.so.1"))
ADAPTER.emulated_verbs.restype = ctypes.c_void_p
REFUSE, MOST, HELD, ASKED, SENDS, WRITES = range(6)
COUNTERS = ctypes.cast(ADAPTER.emulated_verbs(), ctypes.POINTER(ctypes.c_int))
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


class Memory:
    """An allocation of a device, of which ``tensor`` begins at the 128th byte."""

    def __init__(self, *, hidden: bool) -> None:
        size = 128 * 4096
        self.fd = os.memfd_create("device")
        os.truncate(self.fd, size)
        rights = 0 if hidden else mmap.PROT_READ | mmap.PROT_WRITE
        address = LIBC.mmap(None, size, rights, mmap.MAP_SHARED, self.fd, 0)
        CUDA.fake_allocation(ctypes.c_uint64(address), ctypes.c_uint64(size), self.fd)
        line = (ctypes.c_char * size).from_address(address)
        self.tensor = torch.frombuffer(line, dtype=torch.float32, count=COUNT, offset=128)

    def fill(self, seed: int, later: FileDevice | None = None) -> torch.Tensor:
        """``later``: the device that writes the values, not before it is waited for."""
        values = torch.randn(COUNT, generator=torch.Generator().manual_seed(seed))
        work = partial(os.pwrite, self.fd, values.numpy().tobytes(), 128)
        if later is None:
            work()
        else:
            later.work.append(work)
        return values

    def values(self) -> torch.Tensor:
        return torch.frombuffer(bytearray(os.pread(self.fd, 4 * COUNT, 128)), dtype=torch.float32)


class Event:
    def __init__(self, work: list[Callable[[], object]]) -> None:
        self._work = work

    def synchronize(self) -> None:
        while self._work:
            self._work.pop(0)()


class FileDevice(StagedDevice):
    title = memory_name = "files"
    peer_backend = ""
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def record(self) -> Event:
        return Event(self.work)

    def follow(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...
    def host_view(self, values: torch.Tensor) -> torch.Tensor | None:
        return None

    def visible(self) -> AbstractContextManager[object]:
        return nullcontext()

    def peers(self, directory: Path, rank: int, size: int) -> DeviceGroup:
        raise NotImplementedError

    def graphs(self) -> Graphs | None:
        return None

    def memory_free(self) -> int:
        return 1 << 30


def verbs_channels(stream: int, a: int, b: int, epoch: int) -> tuple[_native.Channel, _native.Channel]:
    one, other = [_native.VerbsEndpoint("emu0", 1, 0, "RC", stream) for _ in range(2)]
    one.join(other.local, 5)
    other.join(one.local, 5)
    proof = threading.Thread(target=other.prove, args=(5,))
    proof.start()
    one.prove(5)
    proof.join()
    left, right = socket.socketpair()
    return (
        _native.Channel.verbs(a, b, left.detach(), epoch, one),
        _native.Channel.verbs(b, a, right.detach(), epoch, other),
    )


def groups() -> list[Group]:
    return thread_groups(2, join=verbs_channels, transport="verbs")


def wait_for(counter: int, more_than: int) -> None:
    while COUNTERS[counter] <= more_than:
        os.sched_yield()


def stages_send_in_place() -> None:
    source, target = Memory(hidden=True), Memory(hidden=True)
    both = groups()
    devices = [FileDevice(), FileDevice()]
    staged = [device.group(group, alike=True) for device, group in zip(devices, both, strict=True)]
    for seed in range(3):
        values = source.fill(seed, later=devices[0])
        sends, writes, flushes = COUNTERS[SENDS], COUNTERS[WRITES], flushes_so_far()

        def step(group: Group, sends: int = sends) -> None:
            if group.rank:
                assert staged[1].recv(target.tensor, 0) is target.tensor
            else:
                wait_for(SENDS, sends)  # the receiver's offer
                staged[0].send(source.tensor, 1)

        on_all(both, step)
        assert torch.equal(target.values(), values)
        assert (COUNTERS[WRITES], flushes_so_far()) == (writes + 1, flushes + 1)
    assert exports_so_far() == 2, "each allocation is exported once"
    for group in both:
        group.close()
    assert COUNTERS[HELD] == 2, "the groups' objects hold the regions"
    staged.clear()
    assert COUNTERS[HELD] == 0


def torch_sends_in_place_or_through_the_host() -> None:
    source, target, seen = Memory(hidden=True), Memory(hidden=True), Memory(hidden=False)
    both = groups()
    sender, receiver = [FabricProcessGroup(None, group, "", in_pieces=True) for group in both]  # type: ignore[arg-type]
    values, writes, sends = source.fill(5), COUNTERS[WRITES], COUNTERS[SENDS]
    received = receiver.recv([target.tensor], 0)
    wait_for(SENDS, sends)
    sender.send([source.tensor], 1).wait()
    received.wait()
    received.wait()  # as often as one likes
    assert torch.equal(target.values(), values)
    assert COUNTERS[WRITES] == writes + 1

    values = source.fill(6)
    sender.send([source.tensor], 1).wait()  # all of it is at the receiver before that asks for it
    receiver.recv([seen.tensor], 0).wait()
    assert torch.equal(seen.values(), values)
    assert COUNTERS[WRITES] == writes + 1
    for group in both:
        group.close()


def room_is_made_and_refusals_are_told_once() -> None:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ferrule.staging.direct").addHandler(handler)
    source, target, other = Memory(hidden=True), Memory(hidden=False), Memory(hidden=False)
    both = groups()
    staged = [FileDevice().group(group, alike=True) for group in both]
    COUNTERS[MOST] = COUNTERS[HELD] + 2  # one for each rank
    for into in (target, other, target):
        move(both, staged, source, into)
    assert (told, COUNTERS[HELD]) == ([], COUNTERS[MOST])
    COUNTERS[MOST] = 1000

    COUNTERS[REFUSE] = errno.EOPNOTSUPP
    again = groups()
    staged = [FileDevice().group(group, alike=True) for group in again]
    for _ in range(2):
        move(again, staged, other, target)
    assert len(told) == 2, told
    assert all("through host memory: the driver of emu0 registers no dma-bufs" in text for text in told), told
    for group in (*both, *again):
        group.close()


def move(both: list[Group], staged: list[Any], source: Memory, into: Memory) -> None:
    values = source.fill(COUNTERS[ASKED])
    on_all(both, lambda group: staged[1].recv(into.tensor, 0) if group.rank else staged[0].send(source.tensor, 1))
    assert torch.equal(into.values(), values)


def flushes_so_far() -> int:
    return ctypes.c_int.in_dll(CUDA, "fake_flushes").value


def exports_so_far() -> int:
    return ctypes.c_int.in_dll(CUDA, "fake_exports").value


if __name__ == "__main__":
    torch.set_num_threads(1)
    offer_copier("cpu", lambda device: FileDevice())
    exports.EXPORTERS["cpu"] = exports.CudaExporter
    stages_send_in_place()
    torch_sends_in_place_or_through_the_host()
    room_is_made_and_refusals_are_told_once()
    sys.stdout.write("all is well\n")

"""One rank whose device exchanges with those of its host: ``python peer_rank.py CASE``. It reports one JSON object."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import torch
from torch import Tensor

from ferrule import fabric
from ferrule.engine.devices.emulated import peers as emulated_peers
from ferrule.engine.devices.emulated.device import EmulatedDevice
from ferrule.engine.devices.peers.join import tensor_group
from ferrule.errors import EngineError, FerruleError
from ferrule.staging import PIECE_BYTES

LARGE = PIECE_BYTES // 4 + 5


def join(world: fabric.Group, device: EmulatedDevice) -> Any:
    return tensor_group(world, world, device, alike=True)


def choices(world: fabric.Group, device: EmulatedDevice) -> list[str]:
    """Kinds of group, or the error, for each wish, where one rank cannot join, and where all can."""
    found = []
    right, emulated_peers._CONNECT = EmulatedDevice.peers, 1.0

    def broken(*_: Any) -> Any:
        raise OSError("no such thing")

    for wish, method in (("never", right), ("always", broken), ("auto", broken), ("always", right)):
        os.environ["FERRULE_DEVICE_PEERS"] = wish
        EmulatedDevice.peers = method if world.rank == 1 else right  # type: ignore[method-assign]
        try:
            found.append(type(join(world, device)).__name__)
        except EngineError as error:
            found.append(str(error))
    emulated_peers._CONNECT = 30.0
    del os.environ["FERRULE_DEVICE_PEERS"]
    return found


def numbers(world: fabric.Group, device: EmulatedDevice, group: Any) -> dict[str, Any]:
    """Whether collectives give what the fabric alone gives, and what the host had to do for a sum."""
    plain = device.group(world, alike=True)
    differences, equal = 0.0, True
    for count, dtype in ((1000, torch.float32), (LARGE, torch.float32), (64, torch.bfloat16)):
        values = torch.randn(count, generator=torch.Generator().manual_seed(world.rank)).to(dtype)
        here = device.download(group.all_reduce(device.upload(values) * 1))
        there = device.download(plain.all_reduce(device.upload(values)))
        differences = max(differences, float((here - there).float().abs().max()))
        rows: Tensor = torch.from_numpy(world.all_gather(here.float().numpy())).reshape(world.size, -1)
        equal = equal and bool((rows == rows[0]).all())
    x = device.upload(torch.arange(6.0).reshape(2, 3) + world.rank)
    joined = device.download(group.all_gather(x))
    gathered = group.gather(x, 1)
    differences = max(differences, float((joined - device.download(plain.all_gather(x))).abs().max()))
    machine = device.machine
    before = (machine.timeline.waits, machine.to_host, machine.to_device)
    group.all_reduce(x)
    after = (machine.timeline.waits, machine.to_host, machine.to_device)
    return {
        "difference": differences,
        "equal": equal,
        "gathered": gathered is not None and torch.equal(device.download(gathered), joined),
        "host": [now - then for now, then in zip(after, before, strict=True)],
    }


def lost(world: fabric.Group, device: EmulatedDevice, group: Any, how: signal.Signals) -> dict[str, Any]:
    """Rank 1 is lost while the others exchange."""
    world.barrier()
    if world.rank == 1:
        os.kill(os.getpid(), how)
    x, begin = device.upload(torch.ones(8)), time.monotonic()
    try:
        for _ in range(2):  # the first one may end with no error, and no number
            found = device.download(group.all_reduce(x))
    except FerruleError as error:
        told = f"{type(error).__name__} {getattr(error, 'rank', None)}"
    else:
        told = f"no error: {found}"
    try:
        world.check()
    except FerruleError as error:
        told += f", {type(error).__name__}"
    return {"lost": told, "seconds": time.monotonic() - begin}


def main(case: str) -> None:
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    world = fabric.init(strict=True, timeout=60)
    device = EmulatedDevice(world.rank)
    if case == "one host":
        report["choices"] = choices(world, device)
    group = join(world, device)
    report |= {"group": type(group).__name__} | numbers(world, device, group)
    report |= lost(world, device, group, signal.SIGSTOP if case == "one host" else signal.SIGKILL)
    os.write(int(os.environ["REPORT_FD"]), (json.dumps(report) + "\n").encode())
    signal.pause()  # the end of one rank is not what another one notices


if __name__ == "__main__":
    main(sys.argv[1])

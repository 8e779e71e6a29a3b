"""One rank of a job that loses rank 1: what rank 0 gets from each kind of call. ``python fault_rank.py CALL``."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch_rank import report

import ferrule.torch  # noqa: F401 (registers the backend)
from ferrule.errors import PeerLost


def functionally() -> None:
    world = dist.group.WORLD
    assert world is not None
    functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", world))


CALLS: dict[str, Callable[[], object]] = {
    "waiting": lambda: dist.all_reduce(torch.ones(4)),
    "started": lambda: dist.all_reduce(torch.ones(4), async_op=True).wait(),
    "future": lambda: dist.all_reduce(torch.ones(4), async_op=True).get_future().wait(),
    "message": lambda: dist.recv(torch.ones(4), 1),
    "functional": functionally,
}


def main() -> None:
    dist.init_process_group("ferrule", init_method="ferrule://", timeout=timedelta(seconds=30))
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for name, call in CALLS.items():
        try:
            call()
        except Exception as error:  # noqa: BLE001 (the test looks at what it is)
            found = f"{type(error).__name__} rank {error.rank}" if isinstance(error, PeerLost) else repr(error)
            report(name, found)
        else:
            report(name, "no error")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

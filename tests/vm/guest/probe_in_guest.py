"""Runs inside a guest: `ferrule links probe` between two ends on one RDMA device of the kernel's own.

The ends are forks of this process: a new interpreter takes an emulated processor many seconds.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import msgspec

from ferrule.errors import FerruleError, LinkError
from ferrule.fabric.join.addresses import Interface
from ferrule.probe import Effort, End, probe_pair
from ferrule.probe.worker import Worker

KEY = bytes(32)
SECONDS = 100.0
EFFORT = Effort(message=0.05, stream=0.3, warm=0.1, streams=(1,), sizes=(64, 4096), looks=1)


def serve(orders: Connection) -> None:
    worker = Worker(KEY)
    while True:
        try:
            answer = worker.carry_out(orders.recv())
        except EOFError:
            return
        except (FerruleError, OSError) as error:
            answer = {"error": str(error)}
        orders.send(answer)


class Forked:
    """As `End`."""

    here = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._orders, theirs = multiprocessing.Pipe()
        multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), daemon=True).start()
        theirs.close()
        self.order(do="describe")
        told = self.answer(SECONDS)
        self.identity, self.kernel = told["identity"], told["kernel"]
        self.interfaces = msgspec.convert(told["interfaces"], tuple[Interface, ...])
        self.devices, self.rdma = told["devices"], told["rdma"]

    def order(self, **order: Any) -> None:
        self._orders.send(order)

    def answer(self, seconds: float) -> dict[str, Any]:
        if not self._orders.poll(seconds + SECONDS):
            raise LinkError(f"{self.name} did not answer within {seconds + SECONDS:g} s")
        answer: dict[str, Any] = self._orders.recv()
        if "error" in answer:
            raise LinkError(f"{self.name}: {answer['error']}")
        return answer


def main() -> None:
    (device,) = sys.argv[1:]
    os.environ["FERRULE_VERBS_DEVICES"] = device
    begin = time.monotonic()
    one, other = (cast(End, Forked(name)) for name in ("one", "other"))
    pair = probe_pair(one, other, EFFORT, lambda line: None)
    Path("/results/probe.json").write_text(json.dumps(dataclasses.asdict(pair)))
    sys.stdout.write(f"probe {device}: {time.monotonic() - begin:.1f} s\n")


if __name__ == "__main__":
    main()

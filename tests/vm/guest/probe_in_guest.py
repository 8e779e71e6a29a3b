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
from typing import cast

from ferrule.errors import FerruleError, LinkError
from ferrule.probe import Effort, End, probe_pair
from ferrule.probe.ends import AnswerT, expected
from ferrule.probe.orders import Answer, Describe, Description, Failed, Order
from ferrule.probe.worker import Worker

KEY = bytes(32)
SECONDS = 100.0
EFFORT = Effort(message=0.05, stream=0.3, warm=0.1, streams=(1,), sizes=(64, 4096), looks=1)


def serve(orders: Connection) -> None:
    worker = Worker(KEY)
    answer: Answer
    while True:
        try:
            answer = worker.carry_out(orders.recv())
        except EOFError:
            return
        except (FerruleError, OSError) as error:
            answer = Failed(str(error))
        orders.send(answer)


class Forked:
    """As `End`."""

    here = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._orders, theirs = multiprocessing.Pipe()
        multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), daemon=True).start()
        theirs.close()
        self.order(Describe())
        told = self.answer(SECONDS, Description)
        self.identity, self.kernel = told.identity, told.kernel
        self.interfaces, self.devices, self.rdma = told.interfaces, told.devices, told.rdma

    def order(self, order: Order) -> None:
        self._orders.send(order)

    def answer(self, seconds: float, kind: type[AnswerT]) -> AnswerT:
        if not self._orders.poll(seconds + SECONDS):
            raise LinkError(f"{self.name} did not answer within {seconds + SECONDS:g} s")
        return expected(kind, self._orders.recv(), self.name)


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

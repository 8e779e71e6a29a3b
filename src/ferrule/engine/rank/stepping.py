"""Benchmark of a rank's time per token with a model of hardly any weights: what is left is starting operations.

It also measures how much longer a token takes after a wait for another rank's computing, as in a stage of a pipeline.

The planner imports it by the name that it is given, in a process of its own (plan/device/measure.py).
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import NamedTuple

import numpy as np
import transformers

from ferrule import fabric
from ferrule.engine.messages import Add, encode
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.control import Control
from ferrule.engine.rank.driver.loop import Driver
from ferrule.engine.rank.runner import make_runner
from ferrule.engine.rank.warm_up import Trial
from ferrule.engine.types import SamplingParams
from ferrule.model import demo_path, read_model
from ferrule.plan import make_plan
from ferrule.process.lifeline import Lifeline

PROMPT, CONTEXT = 32, 512
_ROUNDS, _TOKENS = 24, 4
SECONDS = 2.0
"""After which no other round begins."""
_PAUSE = 6e-3
"""Seconds: what a stage of a small model waits for others."""
_WEIGHTS, _PIECE = 64 << 20, 4 << 20
"""Bytes that another one reads meanwhile, and how many at once."""


class Steps(NamedTuple):
    """Seconds: of a token, and how much longer one takes after a pause."""

    token: float
    resume: float


def step_seconds() -> Steps:
    """Per token of one stream of the embedded model on one rank of one thread, from its requests to its answers: of the
    processor, without turns of other programs. The quickest of some rounds' medians, since what else the machine does
    makes them slower, never quicker; of the difference that a pause makes the median."""
    transformers.logging.set_verbosity_error()
    spec = read_model(str(demo_path()))
    plan = make_plan(spec)
    options = RankOptions(
        str(demo_path()), "auto", plan, 1, CONTEXT, max_sequences=1, batch_tokens=CONTEXT, end_tokens=()
    )
    ours, theirs = socket.socketpair()
    with ours, _reader() as reading, fabric.init() as world:
        runner = make_runner(options, world, lambda progress: None)
        trial = Trial(CONTEXT, options.max_sequences, step_seconds=0.0, ridge=1)
        driver = Driver(options, runner, Control(Lifeline(theirs.detach())), trial, spec.vocab_size)
        params = SamplingParams(max_tokens=2 * _ROUNDS * _TOKENS + 2, temperature=0.0, ignore_eos=True)
        ours.sendall(encode(Add(1, tuple(range(3, 3 + PROMPT)), (), params)))
        driver.step()  # the prompt
        driver.step()
        end = time.perf_counter() + SECONDS
        rounds: list[tuple[float, float]] = []
        while not rounds or (len(rounds) < _ROUNDS and time.perf_counter() < end):
            before = _median_step(driver, ours, 0.0, reading)
            rounds.append((before, _median_step(driver, ours, _PAUSE, reading)))
        longer = statistics.median(after - before for before, after in rounds)
        return Steps(min(before for before, _ in rounds), max(0.0, longer))


@contextmanager
def _reader() -> Iterator[threading.Event]:
    """While the event is set another core reads memory, as other stages read their weights."""
    reading, ended = threading.Event(), threading.Event()

    def read() -> None:
        weights = np.ones(_WEIGHTS // 8).reshape(-1, _PIECE // 8)
        for piece in cycle(weights):
            if ended.is_set():
                return
            if reading.wait(0.1):
                piece.sum()

    thread = threading.Thread(target=read, name="ferrule-reader", daemon=True)
    thread.start()
    try:
        yield reading
    finally:
        ended.set()
        thread.join()


def _median_step(driver: Driver, ours: socket.socket, pause: float, reading: threading.Event) -> float:
    times = []
    for _ in range(_TOKENS):
        end = time.perf_counter() + pause
        if pause:
            reading.set()
        while time.perf_counter() < end:
            time.sleep(0)  # as a rank waits: awake
        reading.clear()
        begin = time.thread_time()
        driver.step()
        times.append(time.thread_time() - begin)
        ours.recv(1 << 16)
    return statistics.median(times)

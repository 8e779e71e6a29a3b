"""Tokens that the host reads while the device computes the next ones: the answers are the same."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from plugged import plug_in
from tiny_models import make

from ferrule import fabric
from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.engine.messages import Add, Cancel, encode
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.control import Control
from ferrule.engine.rank.driver.loop import Driver
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.rank.warm_up import warm_up
from ferrule.engine.source import describe, read_config
from ferrule.engine.types import SamplingParams
from ferrule.plan import make_plan
from ferrule.process.lifeline import Lifeline

GREEDY, DRAWN = SamplingParams(temperature=0.0, max_tokens=9), SamplingParams(seed=5, max_tokens=7, logprobs=1)


class Served:
    """A driver of one rank, and what it was told to say. ``ahead``: sequences of each step that began before the tokens
    of the one before were read."""

    def __init__(self, directory: Path, graphs: bool) -> None:
        open_device("emulated", 1)
        self.machine = plug_in(Machine(0))
        plan = make_plan(describe(directory, read_config(directory)))
        options = RankOptions(str(directory), "float32", plan, 1, 128, 4, 64, (), graphs=graphs)
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.world = fabric.init()
        self.runner = TorchRunner(options, self.world, self.world, open_device("emulated:0", 1))
        trial = warm_up(self.runner)
        vocabulary = read_config(directory).vocab_size
        self.driver = Driver(options, self.runner, Control(Lifeline(theirs.detach())), trial, vocabulary)
        self.tokens: dict[int, list[Any]] = {}
        self.ahead: list[int] = []
        run_ahead = self.runner.run_ahead

        def counted(batch: Any, tokens: torch.Tensor) -> torch.Tensor | None:
            logits = run_ahead(batch, tokens)
            self.ahead += [] if logits is None else [len(batch.spans)]
            return logits

        self.runner.run_ahead = counted  # type: ignore[method-assign]

    def tell(self, *orders: Add | Cancel) -> None:
        for order in orders:
            self.ours.sendall(encode(order))

    def step(self) -> None:
        self.driver.step()
        lines = self.ours.recv(1 << 16).split(b"\n")[:-1]
        for event in map(json.loads, lines):
            for number, *token in event.get("tokens", ()):
                self.tokens.setdefault(number, []).append(token)

    def until_idle(self) -> dict[int, list[Any]]:
        while self.driver.scheduler.by_identity:
            try:
                self.step()
            except BlockingIOError:  # nothing was said
                continue
        assert self.driver.unread is None or not self.driver.scheduler.running
        return self.tokens


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[bool], Served]]:
    directory = make("llama", tmp_path)
    with ExitStack() as stack:

        def start(graphs: bool) -> Served:
            one = Served(directory, graphs)
            stack.enter_context(one.world)
            stack.enter_context(one.ours)
            return one

        yield start


def asked(one: Served, stop_token: int) -> dict[int, list[Any]]:
    """Two answers, of which the first ends by ``stop_token``; one more that comes while they are made, one that is not
    wanted any more, and at last one with penalties. By number, with all numbers rounded; without the unwanted one."""
    stop = SamplingParams(temperature=0.0, max_tokens=9, stop_token_ids=(stop_token,))
    one.tell(Add(1, (5, 6, 7), (), stop), Add(2, (9, 8, 7, 6), (), DRAWN))
    for _ in range(3):
        one.step()
    one.tell(Add(3, (3, 4, 5), (), GREEDY), Add(4, (3, 4), (), GREEDY))
    one.step()
    one.tell(Cancel(4))
    one.until_idle()
    one.tell(Add(5, (5, 6), (), SamplingParams(temperature=0.0, max_tokens=4, repetition_penalty=1.3)))
    text = json.dumps([(number, told) for number, told in one.until_idle().items() if number != 4])
    return dict(json.loads(text, parse_float=lambda each: round(float(each), 4)))


@pytest.mark.slow
def test_answers_are_those_of_steps_that_wait_for_the_tokens(served: Callable[[bool], Served]) -> None:
    stop_token = asked(served(False), -1)[1][4][0]
    plain = served(False)
    expected = asked(plain, stop_token)
    assert plain.ahead == []
    late = served(True)
    found = asked(late, stop_token)
    assert len(expected[1]) < GREEDY.max_tokens, "it ends by a token, while the others go on"
    assert found == expected
    assert len(late.ahead) > 6
    made = sum(len(told) for told in found.values())
    assert sum(late.ahead) < made, "of an answer that a token ends one more is computed at most"
    late.driver._order(late.driver.scheduler.idle_batch())
    assert late.runner.model.cache.sequences == {}, "what was computed in vain is given back"


@pytest.mark.slow
def test_the_next_step_is_started_before_the_host_reads(served: Callable[[bool], Served]) -> None:
    one = served(True)
    one.tell(Add(1, (5, 6, 7), (), SamplingParams(temperature=0.0, max_tokens=12)))
    for _ in range(4):
        one.step()
    machine = one.machine
    for _ in range(3):
        launches, waits = machine.launches, machine.timeline.waits
        seen = len(one.tokens[1])
        one.step()
        assert len(one.tokens[1]) == seen + 1
        assert machine.timeline.waits == waits + 1, "for the token before"
        assert machine.timeline.default.waiting, "the device has work when the host has read"
        assert machine.launches > launches

"""The driver with constrained sequences: one at fault ends alone, before its answer begins or in the middle of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scripted_control import ScriptedControl

from ferrule import fabric
from ferrule.engine.devices import open_device
from ferrule.engine.grammar import GrammarError
from ferrule.engine.messages import Add, Attach, Cancel, Event, Learn, Order, Refused, Tokens, decode_event, encode
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.control import Control
from ferrule.engine.rank.driver.loop import Driver
from ferrule.engine.rank.sampling.constrained import Matcher
from ferrule.engine.rank.warm_up import Trial
from ferrule.engine.source import demo_path
from ferrule.engine.types import Constraint, SamplingParams
from ferrule.plan import Plan
from ferrule.process.lifeline import Lifeline

VOCABULARY = 3072
PLAN = cast(Plan, SimpleNamespace(driver=0, pipeline=1))


LAST = 6


class TooComplex:
    """`Matcher._compute` that fails after some tokens."""

    after = 5

    def __init__(self, matcher: Matcher) -> None:
        self.masks, self.compute = 0, matcher._compute

    def __call__(self) -> NDArray[np.uint8]:
        self.masks += 1
        if self.masks > self.after:
            raise GrammarError("too complex")
        return self.compute()


class RandomLogits:
    """A runner of one rank without a model."""

    def __init__(self, world: fabric.Group) -> None:
        self.world, self.plan, self.device = world, PLAN, open_device("cpu", 1)

    def streamed(self) -> None:
        return None

    def run(self, batch: Batch, features: Sequence[bytes] = ()) -> torch.Tensor:
        return torch.randn(len(batch.logit_rows()), VOCABULARY)

    def captured_room(self) -> int:
        return 0


class Remembering(RandomLogits):
    """Logits that depend on the last two tokens, as far as they are kept."""

    def __init__(self, world: fabric.Group) -> None:
        super().__init__(world)
        self.kept: dict[int, list[int]] = {}

    def run(self, batch: Batch, features: Sequence[bytes] = ()) -> torch.Tensor:
        rows, at = [torch.empty(VOCABULARY)][:0], 0
        for span in batch.spans:
            kept = self.kept.setdefault(span.sequence, [])
            del kept[span.seen :]
            for token in batch.tokens[at : at + span.tokens]:
                kept.append(token)
                random = torch.Generator().manual_seed(hash((span.sequence, *kept[-2:])))
                rows.append(torch.randn(VOCABULARY, generator=random))
            at += span.tokens
        return torch.stack(rows)[batch.logit_rows()] if rows else torch.empty(0, VOCABULARY)


def test_guesses_do_not_change_what_a_grammar_lets_through() -> None:
    """Nor the log-probabilities."""

    def told(speculate: int) -> tuple[dict[int, list[Any]], Driver]:
        orders: list[Order] = [Learn((Path(demo_path()) / "tokenizer.json").read_text())]
        for number, regex in enumerate(["(one, two, )*", "[ab]*", '{"name": "[a-z]{3}"}(, {"name": "[a-z]{3}"})*'], 1):
            params = SamplingParams(
                60, 0.7, seed=number, ignore_eos=True, constraint=Constraint("regex", regex), logprobs=1
            )
            orders.append(Add(number, (5, 6), (), params))
        control = ScriptedControl(orders)
        with fabric.init() as world:
            options = RankOptions("", "float32", PLAN, 1, 512, 8, 64, end_tokens=(0,), speculate=speculate)
            trial = Trial(512, 8, 0.0, ridge=16)
            driver = Driver(options, cast(Any, Remembering(world)), cast(Any, control), trial, VOCABULARY)
            driver.step()
            while driver.opening or driver.scheduler.by_identity:
                driver.step()
        made: dict[int, list[Any]] = {}
        for new in control.tokens():
            made.setdefault(new.id, []).append((new.token, new.logprob, new.top, new.finish))
        return made, driver

    without, _ = told(0)
    found, driver = told(4)
    assert found == without
    assert driver.speculation is not None
    assert driver.speculation.accepted > 20


def request(number: int, constraint: Constraint | None) -> Add:
    return Add(number, (5, 6), (), SamplingParams(20, seed=number, ignore_eos=True, constraint=constraint))


def test_a_sequence_whose_grammar_fails_ends_alone() -> None:
    regex, broken = Constraint("regex", "[a-z]{400}"), Constraint("regex", "[a-y]{400}")
    orders: list[Order] = [
        Learn((Path(demo_path()) / "tokenizer.json").read_text()),
        Attach(1, b"of an image"),
        request(1, Constraint("regex", "a(b")),
        request(2, regex),
        request(3, None),
        request(4, broken),
        request(5, regex),
        Cancel(5),
        request(LAST, None),
    ]
    ours, theirs = socket.socketpair()
    with ours, fabric.init() as world:
        options = RankOptions("", "float32", PLAN, 1, 512, 8, 64, end_tokens=(0,))
        runner = cast(Any, RandomLogits(world))
        driver = Driver(options, runner, Control(Lifeline(theirs.detach())), Trial(512, 8, 0.0, ridge=16), VOCABULARY)
        opened = driver.grammars.open

        def open_failing(constraint: Constraint, made: tuple[int, ...], *, skips: bool) -> Matcher:
            matcher = opened(constraint, made, skips=skips)
            if constraint == broken:
                matcher._compute = TooComplex(matcher)  # type: ignore[method-assign]
            return matcher

        driver.grammars.open = open_failing  # type: ignore[method-assign,assignment]
        # By a thread, as the tokenizer is more than the socket holds.
        sender = threading.Thread(target=lambda: ours.sendall(b"".join(map(encode, orders))))
        sender.start()
        came = False
        while not came or driver.opening or driver.scheduler.by_identity:
            driver.step()
            came = came or LAST in driver.scheduler.by_identity
        sender.join()
        ours.settimeout(5)
        events: list[Event] = [decode_event(line) for line in ours.recv(1 << 20).splitlines()]
    refused = {event.id: event.message for event in events if isinstance(event, Refused)}
    assert refused.keys() == {1, 4}
    assert not driver.incoming._pieces, "what came with a request that is refused is dropped"
    assert "unclosed group" in refused[1]
    assert refused[4] == "too complex"
    told = [token for event in events if isinstance(event, Tokens) for token in event.tokens]
    ends = {token.id: token.finish for token in told}
    assert (ends[2], ends[3], ends[4], ends[LAST]) == ("length", "length", None, "length")
    assert not ends.keys() & {1, 5}
    assert sum(token.id == 4 for token in told) == TooComplex.after

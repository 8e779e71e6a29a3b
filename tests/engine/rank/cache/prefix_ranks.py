"""Ranks as threads, with the driver that a server has: what they answer, and what of prompts they did not compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from hypothesis import strategies as st
from in_threads import on_plan
from scripted_control import ScriptedControl
from test_parity import plan_for

from ferrule.engine.devices import Device, open_device
from ferrule.engine.messages import Add, Cancel
from ferrule.engine.options import Adapter, Draft, RankOptions
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.cache.shared import open_index
from ferrule.engine.rank.draft.load import drafts_of, open_draft
from ferrule.engine.rank.driver.drafting import Drafts
from ferrule.engine.rank.driver.loop import Driver
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.rank.warm_up import Trial, try_draft, warm_up
from ferrule.engine.rank.worker import follow
from ferrule.engine.spec import read_mtp_spec, read_spec
from ferrule.engine.types import SamplingParams
from ferrule.errors import FabricError
from ferrule.fabric import Group
from ferrule.plan import Plan, make_plan

CONTEXT, VOCABULARY = 256, 131
Turn = Sequence[Add | Cancel]


class Answers(NamedTuple):
    """By request: its ``tokens``, and how many of its prompt were ``cached``. ``computed``: tokens of all batches.
    ``driver``: as it was at the end."""

    tokens: dict[int, list[int]]
    cached: dict[int, int]
    computed: int
    driver: Driver


def prompt(seed: int, length: int) -> tuple[int, ...]:
    drawn = torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))
    return tuple(drawn.tolist())


def add(identity: int, prompt: tuple[int, ...], made: tuple[int, ...] = (), **params: Any) -> Add:
    given = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **params}
    return Add(identity, prompt, made, SamplingParams(**given))


def speculated_turns() -> list[Any]:
    """Greedy and sampled answers; the second turn begins with blocks of the first, answers included."""
    first = add(1, prompt(1, 40), max_tokens=BLOCK + 6)
    return [
        [first, add(2, prompt(2, 70), max_tokens=30, temperature=1.0, seed=3, frequency_penalty=0.3)],
        [add(3, (*prompt(1, 40), *prompt(3, 9)), max_tokens=20), add(4, first.prompt, max_tokens=2 * BLOCK, seed=1)],
    ]


BEGINNING = prompt(1, 2 * BLOCK + 5)
"""Two blocks and a bit."""
Requests = list[list[tuple[int, int, int]]]
"""Turns of requests: tokens of `BEGINNING`, which tokens follow, and how many of an answer."""


def requests(fewest: int, most: int) -> st.SearchStrategy[Requests]:
    """From ``fewest`` to ``most`` turns."""
    one = st.tuples(st.sampled_from([0, 1, BLOCK, 70, 2 * BLOCK, 132]), st.integers(0, 2), st.integers(1, 40))
    return st.lists(st.lists(one, min_size=1, max_size=4), min_size=fewest, max_size=most)


def turns_of(requests: Requests, *, cancelled: bool) -> list[Any]:
    """For `answers`; ``cancelled``: the first of each turn is."""
    found, first = list[list[Any]](), 1
    for turn in requests:
        found.append([
            add(first + at, (*BEGINNING[:shared], *prompt(own, 20)), max_tokens=most)
            for at, (shared, own, most) in enumerate(turn)
        ])  # fmt: skip
        found[-1] += [Cancel(first)] * cancelled
        first += len(turn)
    return found


def answers(
    directory: Path,
    *turns: Turn,
    split: tuple[int, int] = (1, 1),
    plan: Plan | None = None,
    runner: type[StepRunner | TorchRunner] = StepRunner,
    device: Callable[[], Device] = lambda: open_device("cpu", 1),
    cache_tokens: int | None = None,
    adapters: tuple[Adapter, ...] = (),
    batch_tokens: int = 64,
    short: int | None = None,
    draft: Path | None = None,
    mtp: bool = False,
    **options: Any,
) -> Answers:
    """What ranks say to ``turns``, each of which comes when the requests of the one before have ended. Cancellations
    come five steps after what is before them in their turn. ``plan``: in the place of an even ``split``. ``draft``: the
    model that guesses; ``mtp``: the model's own layer does."""
    plan = plan or plan_for(directory, *split)
    drafts = None if draft is None else Draft(str(draft), "", plan_for(draft, 1, 1), read_spec(draft).max_context)
    if mtp:
        layer = read_mtp_spec(directory)
        drafts = Draft(str(directory), "", make_plan(layer), layer.max_context, mtp=True)
    given = RankOptions(
        str(directory), "float32", plan, 1, CONTEXT, 4, batch_tokens, (), adapters=adapters, draft=drafts, **options
    )

    def body(world: Group, stage: Group) -> Answers | None:
        mine = drafts if world.rank == plan.driver else None
        one: Any = runner(given, world, stage, device())
        small = open_draft(world, given, mine, None, lambda _: None, nullcontext, one)
        tried = None if small is None else try_draft(small)
        trial = warm_up(one, tried)
        shared = one.shared if trial.unshared is None else None
        prefixes = open_index(world, given, shared, one.dtype, copies=trial.copies)
        try:
            if world.rank != plan.driver:
                with suppress(FabricError):
                    follow(one)
                return None
            trial = replace(trial, cache_tokens=cache_tokens or trial.cache_tokens)
            guesses = None if small is None or tried is None else drafts_of(small, tried, VOCABULARY, trial, one)
            return _drive(given, one, trial, turns, short, prefixes, guesses)
        finally:
            world.close()
            if small is not None:
                small.world.close()
            if shared is not None:
                shared.close()

    (found,) = [each for each in on_plan(plan, body) if each is not None]
    return found


def _drive(
    options: RankOptions,
    runner: Any,
    trial: Trial,
    turns: Sequence[Turn],
    short: int | None,
    prefixes: Any,
    draft: Drafts | None,
) -> Answers:
    control = ScriptedControl()
    driver = Driver(options, runner, cast(Any, control), trial, VOCABULARY, short, prefixes, draft=draft)
    computed = 0
    run = runner.run

    def counted(batch: Any, features: Any = ()) -> Any:
        nonlocal computed
        computed += len(batch.tokens)
        return run(batch, features)

    runner.run = counted
    for turn in turns:
        for order in turn:
            for _ in range(5 * isinstance(order, Cancel)):
                driver.step()
            control.coming.append(order)
        driver.step()
        while driver.scheduler.by_identity or driver.under_way:
            driver.step()
    driver.step()  # idle: the others are told what has ended
    tokens: dict[int, list[int]] = {}
    cached: dict[int, int] = {}
    for new in control.tokens():
        tokens.setdefault(new.id, []).append(new.token)
        if new.cached is not None:
            cached[new.id] = new.cached
    return Answers(tokens, cached, computed, driver)

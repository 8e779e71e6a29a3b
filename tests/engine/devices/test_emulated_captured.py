"""Captured steps on the emulated accelerator: what a replay gives, launches and waits for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import seeing_models
import torch
from on_devices import make_runners, prompt
from plugged import plug_in
from thread_group import Shared, ThreadGroup, run_ranks
from tiny_models import CONFIGS, make

from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import LostDevice, Machine
from ferrule.engine.options import RankOptions
from ferrule.engine.rank import captured
from ferrule.engine.rank.batch import Batch, Picture, Span
from ferrule.engine.rank.cache.pages import pages_for
from ferrule.engine.rank.captured import Size, unfit
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.source import describe, read_config
from ferrule.plan import Plan, make_plan

CACHE = 4096
REFUSED = ("phimoe",)
"""Families whose modules ask the device something in each step, as transformers has them."""
LATE, SHUFFLED = None, 0
"""Seeds: everything as late as possible, or in an order of its own."""


def plan_of(directory: Path, tensor: int = 1, pipeline: int = 1) -> Plan:
    return make_plan(describe(directory, read_config(directory)), tensor=tensor, pipeline=pipeline)


def machines(seed: int | None = LATE) -> list[Machine]:
    open_device("emulated", 1)
    return [plug_in(Machine(index, seed=seed)) for index in range(2)]


def reserve(runner: TorchRunner, tokens: int = CACHE) -> TorchRunner:
    """What the warm-up does, where every rank has as much room."""
    runner.run(Batch((Span(0, 0, 4, True),), (0,) * 4))
    runner.cache_bytes_per_token(0)
    runner.run(Batch(released=(0,)))
    runner.cache_memory()
    runner.reserve(tokens, 4, runner.captured_room())
    return runner


def answers() -> list[Batch]:
    """Three sequences: their prompts, steps of all and of two of them, a prompt beside answers, and steps again."""
    given, ends = {number: prompt(number) + prompt(number + 9) for number in (1, 2, 3)}, {1: 5, 2: 11, 3: 7}
    seen = dict.fromkeys(given, 0)

    def batch(released: Sequence[int] = (), **counts: int) -> Batch:
        spans, tokens = [], []
        for name, count in counts.items():
            number = int(name[1:])
            first, seen[number] = seen[number], seen[number] + count
            spans.append(Span(number, first, count, True))
            tokens += given[number][first : first + count]
        return Batch(tuple(spans), tuple(tokens), tuple(released))

    begin = [batch(s1=ends[1], s2=ends[2])]
    pair = [batch(s1=1, s2=1) for _ in range(3)]
    mixed = [batch(s1=1, s2=1, s3=ends[3])]
    three = [batch(s1=1, s2=1, s3=1) for _ in range(3)]
    fewer = [batch(released=(2,), s3=1, s1=1), batch(s3=1), batch(s1=1, s3=1)]
    seen[2] = 0
    return begin + pair + mixed + three + fewer + [batch(s2=9, s1=1), batch(s2=1, s1=1)]


def answered(
    directory: Path, plan: Plan, given: Sequence[Batch], graphs: bool, weights: str | None = None,
    runners: list[TorchRunner] | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """The driver's logits after each batch."""
    stages = [Shared(plan.tensor) for _ in range(plan.pipeline)]
    devices = ["emulated:0", "emulated:1"]

    def rank(world: ThreadGroup) -> list[torch.Tensor]:
        runner = make_runners(directory, plan, devices, "float32", weights, world, stages)
        if graphs:
            reserve(runner)
            assert runner.captured is not None
        if runners is not None:
            runners.append(runner)
        found = (runner.run(batch) for batch in given)
        return [runner.device.download(logits).clone() for logits in found if logits is not None]

    found: list[torch.Tensor] = run_ranks(plan.world_size, rank)[plan.driver]
    return found


def check(name: str, directory: Path, split: tuple[int, int], weights: str | None, most: int | None = None) -> None:
    plan, given = plan_of(directory, *split), answers()[:most]
    runners: list[TorchRunner] = []
    found = answered(directory, plan, given, True, weights, runners)
    for runner in runners:
        assert runner.captured is not None
        refused = [step.script.refused for step in runner.captured.steps.values() if not step.script.launches]
        assert (not refused) == (name not in REFUSED), refused
        assert {size.rows for size in runner.captured.steps} == ({1, 2, 4} if most is None else {2})
    expected = answered(directory, plan, given, False, weights)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 1e-4
        assert torch.equal(one.argmax(-1), other.argmax(-1))


def make_for(weights: str | None, name: str, directory: Path) -> Path:
    return make(name, directory, **({"hidden_size": 64, "intermediate_size": 128} if weights else {}))


def test_captured_steps_give_what_others_give(tmp_path: Path) -> None:
    machines(SHUFFLED)
    check("llama", make("llama", tmp_path), (2, 1), None, most=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "split", "seed", "weights"),
    [
        ("llama", (1, 2), LATE, None),
        ("qwen3", (2, 1), LATE, "int8"),
        ("gpt_oss", (1, 1), SHUFFLED, None),
        ("gemma3_text", (1, 1), LATE, None),
        ("qwen3_moe", (2, 1), LATE, None),
    ],
)
def test_captured_steps_of_other_families_and_splits(
    name: str, split: tuple[int, int], seed: int | None, weights: str | None, tmp_path: Path
) -> None:
    machines(seed)
    check(name, make_for(weights, name, tmp_path), split, weights)


@pytest.mark.soak
@pytest.mark.parametrize("name", CONFIGS)
def test_captured_steps_of_every_architecture(name: str, tmp_path: Path) -> None:
    machines()
    directory = make(name, tmp_path)
    world = ThreadGroup(0, Shared(1))
    runner = make_runners(directory, plan_of(directory), ["emulated:0"], "float32", None, world, [Shared(1)])
    reserve(runner)
    assert (runner.captured is None) == (unfit(runner.model.base) is not None)
    if runner.captured is not None:
        check(name, directory, (1, 1), None)


def test_a_replay_is_a_launch_and_a_wait_for_each_collective_and_one_copy_of_what_is_new(tmp_path: Path) -> None:
    both, plan = machines(), plan_of(make("llama", tmp_path), tensor=2)
    stages, given = [Shared(2)], answers()[:5]
    collectives = 2 * 4 + 1 + 1  # two in a layer, that of the embedding, and the head's parts

    def rank(world: ThreadGroup) -> None:
        runner = reserve(make_runners(tmp_path, plan, ["emulated:0", "emulated:1"], "float32", None, world, stages))
        assert runner.captured is not None
        assert runner.captured.size(given[2]) == Size(2, 4)
        with_image = msgspec.structs.replace(given[2], pictures=(Picture(0, 0, 1, 1, 0),))
        assert runner.captured.size(with_image) is None, "its placeholder would be computed"
        for batch in given[:2]:
            runner.run(batch)
        machine = both[world.rank]
        machine.waits.clear()
        for batch in given[2:4]:
            counts, waits, used = machine.counts, machine.timeline.waits, machine.used
            logits = runner.run(batch)
            launches, to_device, to_host = (new - old for new, old in zip(machine.counts, counts, strict=True))
            assert launches == collectives + 1 == runner.captured.steps[Size(2, 4)].script.launches
            back = collectives if world.rank == plan.driver else collectives - 1  # one rank gets the logits
            assert (to_device, to_host) == (1 + back, collectives)
            assert machine.timeline.waits - waits == collectives
            assert machine.waits == {}, "the host waits for events only"
            assert machine.used == used, "nothing is allocated"
            assert (logits is not None) == (world.rank == plan.driver)
        runner.device.synchronize()
        before = machine.used
        runner.captured.steps.clear()
        runner.device.synchronize()
        assert machine.used < before, "what was captured is given back"

    run_ranks(2, rank)


def alone(directory: Path, **options: Any) -> TorchRunner:
    world: Any = ThreadGroup(0, Shared(1))
    plan = plan_of(directory)
    given = RankOptions(str(directory), "float32", plan, 1, 128, 4, 64, (), **options)
    return TorchRunner(given, world, world, open_device("emulated:0", 1))


@pytest.mark.slow
def test_what_keeps_steps_from_being_captured(tmp_path: Path) -> None:
    machines()
    directory = make("llama", tmp_path)
    given, expected = answers()[:4], answered(directory, plan_of(directory), answers()[:4], False)
    switched_off = reserve(alone(directory, graphs=False))
    assert switched_off.captured is None
    assert switched_off.captured_room() == 0
    assert reserve(alone(directory), 1 << 10).captured is None, "pages would take more than the caches"
    runner = reserve(alone(directory))
    assert runner.captured is not None
    assert [runner.captured.size(batch) is None for batch in given] == [True, False, False, False]
    long = Batch((Span(1, 0, 4, True), Span(2, 5000, 1, True)), (1,) * 5)
    assert runner.captured.size(long) is None, "a prompt"
    wide = tuple(Span(number, runner.captured_room(), 1, True) for number in range(2))
    assert runner.captured.size(Batch(wide, (1, 1))) is None, "more than what is reserved for it"
    # A module that asks the device something: what it cannot capture it computes all the same.
    norm = runner.model.base.get_submodule("layers.1.input_layernorm")
    norm.register_forward_hook(lambda module, args, found: found * float(found.isfinite().all()))
    for batch, other in zip(given, expected, strict=True):
        logits = runner.run(batch)
        assert logits is not None
        assert (runner.device.download(logits) - other).abs().max() < 1e-4
    (step,) = runner.captured.steps.values()
    assert not step.script.launches
    assert "not permitted when stream is capturing" in step.script.refused


def test_rows_whose_logits_nobody_wants_and_pages_that_come_back(tmp_path: Path) -> None:
    machines()
    directory = make("llama", tmp_path)
    runner, given = reserve(alone(directory)), answers()[:4]
    expected = [runner.device.download(x).clone() for x in map(runner.run, given) if x is not None]
    runner.run(Batch(released=(1, 2)))
    for wanted, batch, other in zip(([0, 1], [1], [], [0]), given, expected, strict=True):
        spans = tuple(replace_sample(span, number in wanted) for number, span in enumerate(batch.spans))
        logits = runner.run(Batch(spans, batch.tokens))
        assert logits is not None
        assert torch.equal(runner.device.download(logits), other[wanted])
    runner.run(Batch(released=(1, 2)))
    pages = runner.model.cache.pages
    assert pages is not None
    assert sorted(pages._free) == list(range(1, 1 + pages_for(CACHE, 4)))


@pytest.mark.slow
def test_of_many_sizes_those_that_ran_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST_STEPS", 1)
    (machine, _), given = machines(), answers()[:4]
    runner, used = reserve(alone(make("llama", tmp_path))), []
    assert runner.captured is not None
    single = Batch((Span(1, 8, 1, True),), (5,))
    for batch in [*given, single, Batch((Span(1, 9, 1, True), Span(2, 14, 1, True)), (5, 5))]:
        runner.run(batch)
        runner.device.synchronize()
        used.append(machine.used)
    assert list(runner.captured.steps) == [Size(2, 4)]
    assert used[-1] == used[-3], "what was captured for one row is given back"


def test_a_step_is_dropped_when_it_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST_STEPS", 1)
    machines()
    runner = reserve(alone(make("llama", tmp_path)))
    assert runner.captured is not None
    for batch in answers()[:4]:
        runner.run(batch)
    assert list(runner.captured.steps) == [Size(2, 4)]
    logits = runner.run(Batch((Span(1, 8, 1, True),), (5,)))  # the host has waited for none of the others
    assert list(runner.captured.steps) == [Size(1, 4)]
    assert logits is not None
    assert runner.device.download(logits).isfinite().all()


def replace_sample(span: Span, sample: bool) -> Span:
    return Span(span.sequence, span.seen, span.tokens, sample, span.known)


@pytest.mark.slow
def test_a_device_that_is_lost_or_full_in_a_captured_step(tmp_path: Path) -> None:
    both, given = machines(), answers()[:5]
    directory = make("llama", tmp_path)
    expected = answered(directory, plan_of(directory), given, False)
    both = machines()
    runner = reserve(alone(directory))
    for batch in given[:3]:
        runner.run(batch)
    both[0].fill()
    logits = runner.run(given[3])
    assert logits is not None, "a replay allocates nothing"
    with pytest.raises(torch.OutOfMemoryError, match="emulated:0 out of memory"):
        runner.device.upload(torch.ones(8))
    both[0].lose("fell off the bus")
    with pytest.raises(LostDevice, match="emulated:0: fell off the bus"):
        runner.run(given[3])
    del runner, logits
    both = machines()
    runner = reserve(alone(directory))  # as ranks that start again: the tokens so far are a prompt
    tokens = {1: (), 2: ()}
    for batch in given[:4]:
        start = 0
        for span in batch.spans:
            tokens[span.sequence] += batch.tokens[start : start + span.tokens]
            start += span.tokens
    whole = tuple(Span(number, 0, len(each), True) for number, each in tokens.items())
    logits = runner.run(Batch(whole, sum(tokens.values(), ())))
    assert logits is not None
    assert (runner.device.download(logits) - expected[3]).abs().max() < 1e-4
    mixed = given[4]
    step = Batch(mixed.spans[:2], mixed.tokens[:2])
    for _ in range(2):  # what is captured, and what is replayed in the place of the same token
        assert runner.captured is not None
        assert runner.captured.size(step) == Size(2, 4)
        logits = runner.run(step)
        assert logits is not None
        assert (runner.device.download(logits) - expected[4][:2]).abs().max() < 1e-4
        for span in step.spans:
            runner.model.cache.sequences[span.sequence].length -= 1


@pytest.mark.slow
def test_positions_by_axis_are_captured(tmp_path: Path) -> None:
    """As of answers about images, which go on at other positions than their places."""
    machines()
    directory = seeing_models.make("qwen3_vl", tmp_path)

    def axes(batch: Batch) -> tuple[int, ...]:
        places = [(span, span.seen + index) for span in batch.spans for index in range(span.tokens)]
        turned = [[place - 2 + axis * (span.tokens > 1) for span, place in places] for axis in range(3)]
        return tuple(each for axis in turned for each in axis)

    given = [msgspec.structs.replace(batch, axes=axes(batch)) for batch in answers()]
    plan, runners = plan_of(directory, pipeline=2), list[TorchRunner]()
    found = answered(directory, plan, given, True, runners=runners)
    assert all(runner.captured is not None and runner.captured.steps for runner in runners)
    expected, plain = (answered(directory, plan, batches, False) for batches in (given, answers()))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 1e-4
    assert (expected[-1] - plain[-1]).abs().max() > 1e-3

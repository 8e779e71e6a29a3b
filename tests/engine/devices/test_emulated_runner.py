"""A rank on an accelerator: what it waits for, different devices in one model, and what happens when memory ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from on_devices import batches, expected_logits, make_runners, prompt, run_on
from plugged import plug_in
from thread_group import Shared, ThreadGroup
from tiny_models import make

from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import LostDevice, Machine
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.sampling.sampler import Sampler, choose_all
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.source import describe, read_config
from ferrule.engine.types import SamplingParams
from ferrule.plan import Plan, make_plan


@pytest.fixture(autouse=True)
def machines() -> list[Machine]:
    open_device("emulated", 1)
    return [plug_in(Machine(index)) for index in range(2)]


def plan_of(directory: Path, tensor: int = 1, pipeline: int = 1) -> Plan:
    return make_plan(describe(directory, read_config(directory)), tensor=tensor, pipeline=pipeline)


def alone(directory: Path, weights: str | None = None) -> TorchRunner:
    world = ThreadGroup(0, Shared(1))
    return make_runners(directory, plan_of(directory), ["emulated:0"], "float32", weights, world, [Shared(1)])


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "gpt_oss",
                "qwen3_moe",
                "deepseek_v3",
                "gemma3_text",
                "gemma3n_text",
                "llama4_text",
                "deepseek_v32",
                "glm_moe_dsa",
                "deepseek_v4",
            )
        ),
    ],
)
def test_one_wait_for_each_token_and_no_copy_but_those_of_the_batch(
    name: str, tmp_path: Path, machines: list[Machine]
) -> None:
    runner, (machine, _) = alone(make(name, tmp_path)), machines
    greedy = (SamplingParams(temperature=0.0), 1, 0)
    drawn = (SamplingParams(seed=1, top_k=9, top_p=0.9, min_p=0.01), 1, 1)
    everything = (replace(drawn[0], repetition_penalty=1.1, presence_penalty=0.5, logprobs=2), 4, 5)
    for batch, (params, to_host, to_device) in zip(
        batches([prompt(1), prompt(2)]), (greedy, drawn, everything), strict=True
    ):
        machine.waits.clear()
        before = (machine.timeline.waits, machine.to_host, machine.to_device)
        logits = runner.run(batch)
        assert logits is not None
        choices = choose_all(runner.device, logits, [(Sampler(params), prompt(), 3) for _ in logits])
        assert machine.waits == {}, "the host waits for events only"
        assert machine.timeline.waits - before[0] == 1
        assert machine.to_host - before[1] == to_host, "the sequences' tokens, and log-probabilities that are wanted"
        copies = machine.to_device - before[2] - 3
        assert copies == to_device, "beside tokens, positions, and which logits are wanted: of how they are chosen"
        expected = [Sampler(params).choose(row, prompt(), 3) for row in runner.device.download(logits)]
        assert [choice.token for choice in choices] == [choice.token for choice in expected]


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("split", [(2, 1), (1, 2)])
def test_one_wait_for_each_collective(
    split: tuple[int, int], unified: bool, tmp_path: Path, machines: list[Machine]
) -> None:
    make("llama", tmp_path)
    plan = plan_of(tmp_path, *split)
    machines[:] = [plug_in(Machine(index, unified=unified)) for index in range(2)]
    run_on(tmp_path, plan, ["emulated:0", "emulated:1"], [])
    at_load = [machine.timeline.waits for machine in machines]
    loads = [sum(machine.waits.values()) for machine in machines]
    copies = [(machine.to_host, machine.to_device) for machine in machines]
    machines[:] = [plug_in(Machine(index, unified=unified)) for index in range(2)]
    given = batches([prompt()])
    found = run_on(tmp_path, plan, ["emulated:0", "emulated:1"], given)
    assert (found - expected_logits(tmp_path, [prompt()])).abs().max() < 1e-4
    assert [sum(machine.waits.values()) for machine in machines] == loads, "steps wait for events only"
    layers = 4
    # Two sums in a layer and that of the embedding; the head's parts; a stage's hidden states; and the logits at last.
    here = [2 * layers + 1 + 1 + 1, 2 * layers + 1 + 1] if split == (2, 1) else [1, 1]
    steps = [machine.timeline.waits - before for machine, before in zip(machines, at_load, strict=True)]
    if unified and split == (1, 2):
        here[1] += 1  # to receive: the device may still use the memory for something else
    assert steps == [len(given) * each for each in here]
    if unified:
        counts = [
            (machine.to_host - host, machine.to_device - there)
            for machine, (host, there) in zip(machines, copies, strict=True)
        ]
        # Tokens or nothing, positions, and which logits are wanted; and the driver's logits.
        given_to = [3, 3] if split == (2, 1) else [3, 2]
        assert counts == [
            (len(given) * (rank == plan.driver), len(given) * each) for rank, each in enumerate(given_to)
        ], "none for collectives"


@pytest.mark.slow
@pytest.mark.parametrize("split", [(2, 1), (1, 2)])
@pytest.mark.parametrize("devices", [["cpu", "emulated:0"], ["emulated:1", "cpu"]])
@pytest.mark.parametrize("weights", [None, "int8"])
def test_different_devices_in_one_model(
    devices: list[str], split: tuple[int, int], weights: str | None, tmp_path: Path
) -> None:
    make("llama", tmp_path, hidden_size=64, intermediate_size=128)
    given, plan = batches([prompt(1), prompt(2)]), plan_of(tmp_path, *split)
    found = run_on(tmp_path, plan, devices, given, weights=weights)
    expected = run_on(tmp_path, plan, ["cpu", "cpu"], given, weights=weights)
    assert (found - expected).abs().max() < 1e-4
    if weights is None:
        assert (found - expected_logits(tmp_path, [prompt(1), prompt(2)])).abs().max() < 1e-4


def test_released_sequences_give_their_memory_back(tmp_path: Path, machines: list[Machine]) -> None:
    runner = alone(make("llama", tmp_path))
    runner.run(Batch((Span(1, 0, 3, True),), (5, 6, 7)))
    runner.run(Batch(released=(1,)))
    runner.device.synchronize()
    used = machines[0].used
    for _ in range(3):
        runner.run(Batch((Span(2, 0, 20, True),), tuple(prompt())))
        assert machines[0].used > used
        runner.run(Batch(released=(2,)))
        runner.device.synchronize()
        assert machines[0].used <= used


def test_memory_of_work_that_has_not_been_done_is_counted_as_free(tmp_path: Path, machines: list[Machine]) -> None:
    runner = alone(make("llama", tmp_path))
    logits = runner.run(Batch((Span(0, 0, 40, True),), tuple(prompt(1) * 8)[:40]))
    del logits
    runner.run(Batch(released=(0,)))
    free = runner.cache_memory()
    runner.device.synchronize()
    assert free == runner.cache_memory()


def test_memory_that_ends_in_a_step_is_told_and_given_back(tmp_path: Path, machines: list[Machine]) -> None:
    runner = alone(make("llama", tmp_path))
    runner.run(Batch((Span(1, 0, 3, True),), (5, 6, 7)))
    runner.run(Batch(released=(1,)))
    runner.device.synchronize()
    used = machines[0].used
    machines[0].memory = used + 10_000
    with pytest.raises(torch.OutOfMemoryError, match="emulated:0 out of memory"):
        runner.run(Batch((Span(2, 0, 100, True),), (9,) * 100))
    machines[0].memory = 1 << 30
    logits = runner.run(Batch((Span(3, 0, 13, True),), tuple(prompt()[:13]), (2,)))
    assert logits is not None
    assert (runner.device.download(logits) - expected_logits(tmp_path, [prompt()])[0]).abs().max() < 1e-4
    del logits
    runner.run(Batch(released=(3,)))
    runner.device.synchronize()
    assert machines[0].used <= used


def test_a_device_that_is_lost_ends_the_step(tmp_path: Path, machines: list[Machine]) -> None:
    runner = alone(make("llama", tmp_path))
    machines[0].lose("fell off the bus")
    with pytest.raises(LostDevice, match="emulated:0: fell off the bus"):
        runner.run(Batch((Span(1, 0, 3, True),), (5, 6, 7)))

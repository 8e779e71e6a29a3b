"""Prompts that go between processors and accelerators: both ways, with the answers of ranks that compute both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from apart_ranks import answers_apart
from in_threads import on_plan
from plugged import plug_in
from prefix_ranks import CONTEXT, add, answers, prompt
from test_any_schedule import laid_out
from tiny_models import make

from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.engine.messages import Hand
from ferrule.engine.options import ANSWERS, PROMPTS, RankOptions
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.cache.pages import Layout
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.handover.send import Piece
from ferrule.engine.rank.handover.tensors import as_pages, head_bytes, of_pages
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.source import describe, read_config
from ferrule.fabric import Group
from ferrule.plan import make_plan

LONG = prompt(7, 3 * BLOCK + 9)
TURNS = ([add(1, LONG), add(2, prompt(8, 40))], [add(4, (*LONG[: 2 * BLOCK], *prompt(10, 2 * BLOCK)))])


@pytest.fixture(autouse=True)
def machine() -> Machine:
    open_device("emulated", 1)
    return plug_in(Machine(0))


@pytest.mark.parametrize(
    ("family", "prompts", "answering", "devices"),
    [
        ("llama", "one", "one", {PROMPTS: "emulated:0"}),
        ("llama", "one", "one", {ANSWERS: "emulated:0"}),
        ("qwen3_moe", "one", "one", {PROMPTS: "cpu"}),
        pytest.param("gpt_oss", "stages", "even", {PROMPTS: "cpu"}, marks=pytest.mark.slow),
        pytest.param("llama", "even", "stages", {ANSWERS: "cpu"}, marks=pytest.mark.slow),
        pytest.param("gemma3_text", "one", "one", {PROMPTS: "cpu", ANSWERS: "emulated:0"}, marks=pytest.mark.slow),
    ],
)
def test_devices_hand_over_to_each_other(
    tmp_path: Path, family: str, prompts: str, answering: str, devices: dict[str, str]
) -> None:
    directory = make(family, tmp_path)
    spec = describe(directory, read_config(directory))
    plans = [make_plan(spec) if name == "one" else laid_out(name, spec) for name in (prompts, answering)]
    expected = answers(directory, *TURNS, prefix_cache=False)
    found = answers_apart(directory, plans[0], plans[1], *TURNS, devices=devices)
    assert found.tokens == expected.tokens
    assert {(each.id, each.first, each.last) for each in found.wanted} == {(1, 0, 3)}
    assert all(each.blocks == each.wanted for each in found.received)
    assert found.cached == {1: 0, 2: 0, 4: 2 * BLOCK}


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("bfloat16", 0.05), ("float16", 5e-3)])
def test_bytes_of_a_part_are_those_of_native_programs(tmp_path: Path, dtype: str, close: float) -> None:
    directory = make("llama", tmp_path)
    plan = make_plan(describe(directory, read_config(directory)))
    options = RankOptions(str(directory), dtype, plan, 1, CONTEXT, 4, 64, ())
    batch = Batch((Span(0, 0, BLOCK, True),), tuple(prompt(3, BLOCK)))
    piece = Piece(Hand(1, 0, 1, 1), 0, 0, 1, final=True)

    def body(world: Group, stage: Group) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
        found = []
        for kind in (StepRunner, TorchRunner):
            runner = kind(options, world, stage, open_device("cpu", 1))
            runner.run(batch)
            if isinstance(runner, TorchRunner):
                runner.cache_bytes_per_token(0)
                assert runner.unshared(0) is None
            of_layers = []
            for place, held in enumerate(runner.held):
                part = place, 0, held.heads
                if isinstance(runner, TorchRunner):
                    runner.part_store.fetch(place, [piece])
                data = np.empty(runner.part_store.part_bytes(part), dtype=np.uint8)
                runner.part_store.copy_part(0, 0, 1, part, data)
                layout = Layout(held.heads, 8, 8, getattr(torch, dtype))
                assert held.size == head_bytes(layout)
                of_layers.append(of_pages(torch.from_numpy(data).view(1, 4, held.heads, -1), layout))
            found.append(of_layers)
        world.close()
        return found

    (both,) = on_plan(plan, body)
    for native, other in zip(*both, strict=True):
        for one, two in zip(native, other, strict=True):
            assert one.shape == two.shape
            assert float(one.float().abs().max()) > 5 * close
            torch.testing.assert_close(one, two, atol=close, rtol=close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_written_as_pages_is_read_again(dtype: torch.dtype) -> None:
    layout = Layout(3, 8, 20, dtype)
    keys, values = torch.randn(3, 2 * BLOCK, 8).to(dtype), torch.randn(3, 2 * BLOCK, 20).to(dtype)
    pages = as_pages(keys, values)
    assert pages.shape[:3] == (2, 4, 3)
    assert pages.numel() == 2 * 3 * head_bytes(layout)
    again = of_pages(pages, layout)
    assert torch.equal(again[0], keys)
    assert torch.equal(again[1], values)

"""Families that keep a recurrent state: logits equal transformers' own, however a sequence is cut into batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from on_devices import batches, expected_logits, logits_of, prompt, run_on
from plugged import plug_in
from test_parity import plan_for
from tiny_models import RECURRENT, make
from transformers import AutoModelForCausalLM

from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.source import describe, read_config

CLOSE = 5e-5
BATCHED_CLOSE = 1e-4
"""Of a batch to each sequence by itself: Qwen3-Next is 6.6e-5 away on processors without AVX-512."""
QUICK = ("lfm2", "qwen3_next")
WAITED = {"kimi_linear": {"aten.add.Tensor makes a tensor whose size depends on numbers"}}
"""By the reference code of transformers."""
WHOLE = ("falcon_h1",)
"""Those that are run on one rank only."""


@pytest.fixture(autouse=True)
def machines() -> list[Machine]:
    open_device("emulated", 1)
    return [plug_in(Machine(index)) for index in range(4)]


def ranks_on(device: str) -> list[str]:
    return [device if device == "cpu" else f"{device}:{rank}" for rank in range(4)]


def check(name: str, directory: Path, split: tuple[int, int], device: str) -> None:
    make(name, directory)
    prompts = [prompt(1), prompt(2)]
    found = run_on(directory, plan_for(directory, *split), ranks_on(device), batches(prompts))
    assert (found - expected_logits(directory, prompts)).abs().max() < CLOSE


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in RECURRENT])
def test_pieces_of_prompts_go_on_where_the_last_ended(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, (1, 1), "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in RECURRENT if n not in WHOLE])
def test_split_both_ways_on_accelerators(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, (2, 2), "emulated")


@pytest.mark.soak
@pytest.mark.parametrize("split", [(2, 1), (1, 2)])
@pytest.mark.parametrize("device", ["cpu", "emulated"])
@pytest.mark.parametrize("name", [n for n in RECURRENT if n not in WHOLE])
def test_every_split(name: str, device: str, split: tuple[int, int], tmp_path: Path) -> None:
    check(name, tmp_path, split, device)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "lfm2" else pytest.mark.slow) for n in RECURRENT])
def test_sequences_at_different_places_share_a_batch(name: str, tmp_path: Path, machines: list[Machine]) -> None:
    """Two that add one token each, one whose prompt is a single token, and one in the middle of its prompt; then one
    that begins again after it was released."""
    make(name, tmp_path)
    a, b, c = prompt(1), prompt(2), prompt(3)
    given = [
        Batch((Span(1, 0, 9, True), Span(2, 0, 12, True)), (*a[:9], *b[:12])),
        Batch((Span(1, 9, 1, True), Span(4, 0, 1, True), Span(2, 12, 1, True), Span(3, 0, 5, True)),
              (a[9], c[0], b[12], *c[:5])),
        Batch((Span(3, 5, 6, True), Span(2, 13, 1, True), Span(4, 1, 1, True), Span(1, 10, 1, True)),
              (*c[5:11], b[13], c[1], a[10])),
        Batch((Span(1, 0, 3, True),), tuple(c[:3]), (1,)),
    ]  # fmt: skip
    runners: list[TorchRunner] = []
    found = logits_of(tmp_path, plan_for(tmp_path, 1, 1), ["emulated"], given, runners=runners)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.inference_mode():
        whole = {key: model(torch.tensor([ids])).logits[0].float() for key, ids in (("a", a), ("b", b), ("c", c))}
    ends = [[("a", 9), ("b", 12)], [("a", 10), ("c", 1), ("b", 13), ("c", 5)],
            [("c", 11), ("b", 14), ("c", 2), ("a", 11)], [("c", 3)]]  # fmt: skip
    for logits, expected in zip(found, ends, strict=True):
        for row, (key, end) in zip(logits, expected, strict=True):
            assert (row - whole[key][end - 1]).abs().max() < BATCHED_CLOSE, (key, end)
    machines[0].waits.clear()
    runners[0].run(Batch((Span(3, 11, 4, True), Span(2, 14, 1, True), Span(1, 3, 1, True)), (*c[11:15], b[14], c[3])))
    assert set(machines[0].waits) == WAITED.get(name, set()), "the host waits for nothing else in a step"
    used = machines[0].used
    runners[0].run(Batch(released=(1, 2, 3, 4)))
    assert machines[0].used < used


@pytest.mark.parametrize("name", WHOLE)
def test_what_cannot_be_cut_is_refused_by_name(name: str, tmp_path: Path) -> None:
    spec = describe(make(name, tmp_path), read_config(tmp_path))
    assert "FalconH1" in str(spec.tensor_refusal)
    assert "FalconH1" in str(spec.pipeline_refusal)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_long_prompts(name: str, tmp_path: Path) -> None:
    make(name, tmp_path, max_position_embeddings=16384)
    ids = torch.randint(3, 131, (8192,), generator=torch.Generator().manual_seed(5)).tolist()
    given = [Batch((Span(1, at, 2048, True),), tuple(ids[at : at + 2048])) for at in range(0, 8192, 2048)]
    found = run_on(tmp_path, plan_for(tmp_path, 1, 1), ["cpu"], given)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, 2047::2048].float()
    assert (found[:, 0] - expected).abs().max() < 1e-3

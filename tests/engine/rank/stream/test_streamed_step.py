"""Steps whose weights are read from disk give bit for bit what they give where all are in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from in_threads import on_plan, thread_groups
from test_parity import plan_for
from tiny_models import make

from ferrule.engine.devices import open_device
from ferrule.engine.devices.cpu import CpuDevice
from ferrule.engine.options import AS_NEEDED, RankOptions
from ferrule.engine.rank.batch import Batch, Kind, Span
from ferrule.engine.rank.runner import choose_runner
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.stream import room
from ferrule.engine.rank.stream.room import weights_room
from ferrule.engine.types import StreamUse
from ferrule.errors import EngineError, PlanError
from ferrule.fabric import Group

IDS = torch.randint(3, 131, (40,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FERRULE_MODEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "streamed"


def steps(
    directory: Path, split: tuple[int, int], stream: int | None, weights: str | None = None
) -> tuple[torch.Tensor, list[StreamUse | None], int]:
    """Logits of a prompt, of a second one and of tokens of both; what was read on each rank, and the bytes of weights
    in memory of the first."""
    plan = plan_for(directory, *split)
    options = RankOptions(
        str(directory), "float32", plan, 1, 128, 4, 64, (), weights=weights, stream_weights=stream, identity="model"
    )
    embeds = split[1] == 1

    def body(world: Group, stage: Group) -> Any:
        runner = StepRunner(options, world, stage, open_device("cpu", 1))
        found = [runner.run(Batch((Span(1, 0, 20, True),), tuple(IDS[:20])))]
        if embeds:  # a step that ends before the program does: what was read ahead is not what is needed next
            runner.run(Batch((Span(9, 0, 4, True),), tuple(IDS[:4]), kind=Kind.EMBED))
            runner.capture(Batch((Span(9, 4, 2, True),), tuple(IDS[:2])), 1, (0,))
        found.append(runner.run(Batch((Span(2, 0, 9, True),), tuple(IDS[20:29]))))
        for place in range(3):
            pair = Span(1, 20 + place, 1, True), Span(2, 9 + place, 1, True)
            found.append(runner.run(Batch(pair, (IDS[29 + place], IDS[35 + place]))))
        logits = None if found[0] is None else torch.cat([each for each in found if each is not None])
        return logits, runner.streamed(), runner.weight_bytes

    results = on_plan(plan, body)
    (logits,) = [each for each, _, _ in results if each is not None]
    return logits, [use for _, use, _ in results], results[0][2]


@pytest.mark.parametrize(
    ("name", "split", "weights", "part"),
    [
        pytest.param("llama", (1, 1), None, 0.7, marks=pytest.mark.slow),
        ("llama", (2, 1), "int4", 0.95),
        pytest.param("llama", (1, 2), None, 0.8, marks=pytest.mark.slow),
        ("qwen3_moe", (1, 1), None, 0.6),
        pytest.param("deepseek_v3", (2, 1), None, 0.6, marks=pytest.mark.slow),
    ],
)
def test_logits_are_the_same(
    name: str, split: tuple[int, int], weights: str | None, part: float, tmp_path: Path
) -> None:
    changes = {"intermediate_size": 128} if weights else {}  # whole groups for each rank
    directory = make(name, tmp_path, **changes)
    whole, unread, held = steps(directory, split, None, weights)
    assert set(unread) == {None}
    most = int(held * part)
    for _ in range(2):  # the second time the file is there
        found, used, kept = steps(directory, split, most, weights)
        assert torch.equal(found, whole)
        assert kept <= most
        for use in used:
            assert use is not None
            assert use.stored > 0
            assert use.read >= use.each_step
            assert (use.hits + use.misses > 0) == (name != "llama")


def test_experts_stay_in_memory_as_they_are_used(tmp_path: Path) -> None:
    """Also where layers are read, too, and there is room for the experts of one token of one layer only."""
    directory = make("qwen3_moe", tmp_path)
    whole, _, held = steps(directory, (1, 1), None)
    found: list[StreamUse] = []
    for part in (0.45, 0.9):
        logits, (use,), kept = steps(directory, (1, 1), int(held * part))
        assert torch.equal(logits, whole)
        assert use is not None
        assert kept <= int(held * part)
        found.append(use)
    scarce, ample = found
    assert scarce.misses > ample.misses
    assert scarce.each_step > 0
    assert ample.each_step == 0
    assert ample.hit_rate == round(ample.hits / (ample.hits + ample.misses), 4)
    assert ample.read < scarce.read


def test_as_much_as_does_not_fit_is_streamed_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the memory that is free, of which two ranks have half each, caches have their part, and something is spare."""
    directory = make("llama", tmp_path)
    whole, _, held = steps(directory, (2, 1), None)
    ample, used, kept = steps(directory, (2, 1), AS_NEEDED)
    assert (kept, used) == (held, [None, None])
    assert torch.equal(ample, whole)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(CpuDevice, "memory_free", lambda device: 5_000_001)
    monkeypatch.setattr(room, "weights_room", lambda *given: asked.append(given) or int(0.8 * held))
    found, used, kept = steps(directory, (2, 1), AS_NEEDED)
    assert torch.equal(found, whole)
    assert 0.5 * held < kept <= 0.8 * held
    assert all(each is not None and each.each_step for each in used)
    assert {free for free, _ in asked} == {2_500_000}
    assert {cache % 128 for _, cache in asked} == {0}, "of the context, which is shorter than what is counted"
    assert weights_room(1600, 200) == 1600 - 100 - 400


def test_a_room_that_is_too_small_is_refused(tmp_path: Path) -> None:
    directory = make("llama", tmp_path)
    with pytest.raises(PlanError, match="give --stream-weights a larger size") as refused:
        steps(directory, (1, 1), 50_000)
    assert refused.value.needed is not None
    assert refused.value.needed > 50_000


def test_a_file_that_ends_too_early_ends_the_rank_and_is_written_anew(tmp_path: Path, cache: Path) -> None:
    directory = make("llama", tmp_path)
    whole, _, held = steps(directory, (1, 1), None)
    most = int(held * 0.7)
    plan = plan_for(directory, 1, 1)
    options = RankOptions(str(directory), "float32", plan, 1, 128, 4, 64, (), stream_weights=most, identity="model")
    (world,) = thread_groups(1)
    runner = StepRunner(options, world, world, open_device("cpu", 1))
    (file,) = cache.glob("rank-0/*/weights")
    os.truncate(file, 4096)
    batch = Batch((Span(1, 0, 20, True),), tuple(IDS[:20]))
    with pytest.raises(EngineError, match=r"the file ends at byte \d+.*; the file is written anew at the next start"):
        list(map(runner.run, [batch] * 3))  # what was read before that is there
    world.close()
    found, _, _ = steps(directory, (1, 1), most)
    assert torch.equal(found, whole)


def test_models_that_run_otherwise_say_that_they_cannot(tmp_path: Path) -> None:
    directory = make("gemma3n_text", tmp_path)
    options = RankOptions(
        str(directory), "float32", plan_for(directory, 1, 1), 1, 128, 4, 64, (), stream_weights=1 << 20
    )
    (world,) = thread_groups(1)
    with pytest.raises(PlanError, match="by native step programs only, on processors"):
        choose_runner(options, world, world, lambda progress: None)
    world.close()

"""Splits of `ferrule bench plan --lab`: what ranks get, and predictions beside made-up measurements."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ferrule.bench.planned import Here, PlannedRow, Round, Split, Turn, choices, rows_of
from ferrule.bench.splits import ALONE, Cables, Setting, subjects
from ferrule.cli.bench.plan import _show_planned
from ferrule.model import ModelSpec, read_model
from ferrule.plan import DeviceSpec
from ferrule.plan.device.contention import ALL_KEPT

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTURE = CONFIG | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "head_dim": 64,
}
HERE = Here(DeviceSpec("host", 8 << 30, 10e9, {"bf16": 1e11}, kind="cpu", launch_seconds=2e-6, measured=True), 4)
NEAR = (Cables(50e-6),)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def model(directory: Path) -> ModelSpec:
    return read_model(str(directory))


def test_what_ranks_get(model: ModelSpec) -> None:
    uneven = Setting(2, 1, NEAR, shares=(3.0, 1.0)).plan(model)
    assert [share.key_value for share in uneven.stages[0].shares] == [0.75, 0.25]
    wide = Setting(2, 2, NEAR, widths=(2, 1))
    assert [(stage.width, stage.first_layer, stage.last_layer) for stage in wide.plan(model).stages] == [
        (2, 0, 8),
        (1, 8, 12),
    ]
    assert wide.ranks == wide.plan(model).world_size == 3
    streamed = Setting(1, 1, NEAR, resident=0.6)
    room = streamed.room(model)
    assert room is not None
    assert room == pytest.approx(0.6 * model.in_engine.bytes, rel=0.01)
    assert streamed.options(Path("m"), model).stream_weights == room
    assert ALONE.options(Path("m"), model).stream_weights is None


def test_experts_are_given_out_whole_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTURE))
    mixture = read_model(str(tmp_path))
    assert Setting(2, 1, NEAR, experts=True).plan(mixture).strategy == "expert"
    assert Setting(2, 1, NEAR).plan(mixture).strategy == "tensor"


@pytest.mark.parametrize("quick", [True, False])
def test_each_split_of_a_model_has_a_text_of_its_own(quick: bool) -> None:
    for subject in subjects(quick=quick):
        texts = [setting.text for setting in subject.settings]
        assert len(set(texts)) == len(texts)
    assert {"tp 2 3:1", "2+1 ranks", "60% in memory"} <= {each.text for each in subjects(quick=quick)[0].settings}


def rounds(directory: Path, cables: tuple[Cables, ...], disk: float | None = None) -> list[Round]:
    turn = Turn(0.02, 0.0)
    return [Round(ALL_KEPT, {directory: turn}, dict.fromkeys(cables, turn), disk)]


def predicted(directory: Path, model: ModelSpec, setting: Setting, disk: float | None = None) -> PlannedRow:
    alone = {directory: ALONE.plan(model)}
    found = {
        ALONE: Split(alone[directory], 1 << 28, alone, rounds(directory, (Cables(),))),
        setting: Split(setting.plan(model), 1 << 28, alone, rounds(directory, setting.cables, disk)),
    }
    calibrating, row = rows_of(directory, found, HERE)
    assert calibrating.calibrates
    assert calibrating.predicted_ms == pytest.approx(20, rel=0.02)
    assert not row.calibrates
    assert row.split == setting.text
    return row


def test_the_larger_part_of_an_uneven_split_sets_the_pace(directory: Path, model: ModelSpec) -> None:
    even, uneven = Setting(2, 1, NEAR), Setting(2, 1, NEAR, shares=(3.0, 1.0))
    quick, slow = predicted(directory, model, even), predicted(directory, model, uneven)
    assert quick.predicted_ms < slow.predicted_ms < quick.predicted_ms * 1.5
    assert slow.predicted_memory_mib > quick.predicted_memory_mib


def test_what_has_no_room_is_read_from_disk(directory: Path, model: ModelSpec) -> None:
    setting = Setting(1, 1, (Cables(),), resident=0.6)
    slow = predicted(directory, model, setting, disk=100e6)
    quick = predicted(directory, model, setting, disk=100e9)
    assert slow.reads
    held = model.in_engine
    read = held.bytes * 0.4 + 2 * max(held.layer_bytes)  # which have the room that others are read into
    assert slow.predicted_ms == pytest.approx(read / 100e6 * 1e3, rel=0.01)
    assert quick.predicted_ms == pytest.approx(20, rel=0.05)
    more = predicted(directory, model, replace(setting, resident=0.9), disk=100e6)
    assert more.predicted_memory_mib - slow.predicted_memory_mib == pytest.approx(0.3 * held.bytes / 2**20, rel=0.01)


def test_the_planner_chooses_among_what_needs_no_disk() -> None:
    alone = PlannedRow("m", "tp 1", 1, True, False, Cables(), 20, 20, 1.0, 20, None, 1, 1)
    split = replace(alone, split="tp 2", hosts=2, calibrates=False, cables=NEAR[0], measured_ms=15, predicted_ms=14)
    uneven = replace(split, split="tp 2 3:1", measured_ms=14, predicted_ms=17)
    streamed = replace(alone, split="60% in memory", calibrates=False, reads=True, measured_ms=1, predicted_ms=1)
    (choice,) = choices([alone, split, uneven, streamed])
    assert (choice.chosen, choice.best) == (split, uneven)
    assert choice.loss == pytest.approx(15 / 14 - 1)


def test_all_of_a_row_is_shown_at_80_columns() -> None:
    console = Console(file=io.StringIO(), width=80)
    rows = [
        PlannedRow(name, split, 2, False, False, Cables(50e-6, 20e6), 1234.5, 1200.0, 0.5, 900, None, 1234, 999)
        for name in ("llama-0.5b-random", "mixture-0.2b-random")
        for split in ("60% in memory", "tp 2 experts", "tp 2 pp 2")
    ]
    _show_planned(console, [replace(rows[0], split="tp 1", calibrates=True), *rows])
    told = console.file.getvalue()
    assert "…" not in told
    for text in ("mixture-0.2b", "60% in memory", "50 µs 20 Mb/s", "1234.5", "calibrates", "-27%", "999"):
        assert text in told, told

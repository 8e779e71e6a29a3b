"""Models out of GGUF files: the logits of transformers, the planner's counts, and parts sent to other hosts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf_models import write
from test_parity import PIECES, TOKENS, forward, plan_for, run_split
from test_shard_needs import only_needed, parameters
from thread_group import ThreadGroup
from transformers import AutoModelForCausalLM

from ferrule.engine.host.prepare import prepare
from ferrule.engine.options import EngineOptions
from ferrule.engine.rank.model import ShardedModel
from ferrule.engine.shards.weight_files import Layout, identity, read_layout
from ferrule.engine.source import describe, local, read_config
from ferrule.engine.spec import read_spec
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.gguf.names import FAMILIES
from ferrule.errors import FerruleError, ModelError, PlanError
from ferrule.model import read_model
from ferrule.model.gguf import header

EXPERTS = {"moe_intermediate_size": 64}
CHANGES: dict[str, dict[str, Any]] = {
    "qwen2_moe": {"use_sliding_window": False, "layer_types": None, **EXPERTS, "shared_expert_intermediate_size": 64},
    "qwen3_moe": {"mlp_only_layers": [], **EXPERTS},
    "deepseek_v2": {"v_head_dim": 8, **EXPERTS},
    "deepseek_v3": {"v_head_dim": 8, **EXPERTS},
    "glm4_moe": EXPERTS,
    "lfm2_moe": {**EXPERTS, "tie_word_embeddings": True},
    "qwen3_next": {**EXPERTS, "shared_expert_intermediate_size": 64},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 64,
        "moe_latent_size": 32,
        "routed_scaling_factor": 2.5,
    },
    "granitemoehybrid": {
        "shared_intermediate_size": 64,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.25,
        "logits_scaling": 2.0,
    },
}
"""Changes that leave out what no GGUF file can say of them; halves of all matrices divide into blocks of 32."""
WIDE = {"intermediate_size": 128}
"""Half of it still divides into blocks of 32."""


def ids() -> torch.Tensor:
    return torch.randint(3, 131, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def logits_of(path: Path, tensor: int, pipeline: int) -> torch.Tensor:
    plan = plan_for(path, tensor, pipeline)

    def body(model: ShardedModel, world: ThreadGroup) -> torch.Tensor | None:
        pieces = [forward(model, world, plan, ids()[:, a:b], a) for a, b in PIECES]
        return None if pieces[0] is None else torch.cat([piece for piece in pieces if piece is not None])

    return next(found for found in run_split(path, plan, body) if found is not None)


def check(path: Path, model: Any, tensor: int, pipeline: int) -> None:
    with torch.inference_mode():
        expected = model(ids()).logits[0]
    assert (logits_of(path, tensor, pipeline) - expected).abs().max() < 1e-4


def test_a_server_reads_the_header_once_and_the_vocabulary_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = write("llama", tmp_path / "m", attention_bias=False, mlp_bias=False)
    os.utime(file, (0, 0))
    read: list[bool] = []
    parse = header.parse_gguf

    def counted(*given: Any, arrays: bool) -> header.Gguf:
        read.append(arrays)
        return parse(*given, arrays=arrays)

    monkeypatch.setattr(header, "parse_gguf", counted)
    assert prepare(EngineOptions(str(file))).end_tokens == {2}
    assert read == [False, True]


READ_BY_TRANSFORMERS = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
}
"""Properties that its own reader of GGUF files takes for granted."""


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2", "qwen3"))]
)
def test_logits_are_those_of_transformers_on_the_same_file(name: str, tmp_path: Path) -> None:
    file, _ = write(name, tmp_path / name, "Q8_0", **WIDE, **READ_BY_TRANSFORMERS[name])
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    for split in ((1, 1), (2, 1)):
        check(file, theirs, *split)


def test_logits_where_transformers_has_experts_the_other_way_round(tmp_path: Path) -> None:
    check(*write("gpt_oss", tmp_path / "gpt_oss", "Q8_0"), 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_every_family(name: str, kind: str, tmp_path: Path) -> None:
    file, model = write(name, tmp_path / name, kind, **WIDE, **CHANGES.get(name, {}))
    for split in ((1, 1), (2, 2)):
        check(file, model, *split)


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        (
            "llama",
            {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        (
            "phi3",
            {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.1, 1.3, 1.7],
                "long_factor": [2.0, 3.0, 5.0, 8.0],
                "original_max_position_embeddings": 128,
                "attention_factor": 1.19,
            },
        ),
        ("qwen2", {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}),
    ],
)
def test_scaled_rotary_embeddings_are_told_by_the_file(name: str, rope: dict[str, Any], tmp_path: Path) -> None:
    original = {"original_max_position_embeddings": 128} if name == "phi3" else {}
    file, model = write(name, tmp_path / name, rope_parameters=rope, **original)
    check(file, model, 1, 1)
    spec = read_model(str(file))
    assert spec.max_context == describe(file, read_config(file)).max_context == 256
    assert spec.bytes == sum(each.n_bytes for each in gguf.GGUFReader(file).tensors if "rope" not in each.name)


def count(name: str, directory: Path) -> None:
    file, _ = write(name, directory, "Q8_0", **CHANGES.get(name, {}))
    counted_alike(file)


def counted_alike(file: Path) -> None:
    planned, engine = read_model(str(file)), describe(file, read_config(file))
    assert planned.decoder == engine.decoder, "the engine and the planner count differently"
    assert (planned.name, planned.stored, planned.tied) == (engine.name, engine.stored, engine.tied)
    assert (planned.embedding, planned.head, planned.final) == (engine.embedding, engine.head, engine.final)
    assert planned.bytes == engine.bytes == sum(each.n_bytes for each in gguf.GGUFReader(file).tensors)
    assert planned.cache_bytes(100) == engine.cache_bytes(100)
    assert planned.activation_bytes == engine.activation_bytes
    assert replace(read_spec(file), architecture=engine.architecture) == engine, "the server and the ranks"


def test_the_planner_counts_what_the_engine_reads(tmp_path: Path) -> None:
    count("llama", tmp_path / "llama")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama"])
def test_the_planner_counts_every_family_as_the_engine_reads_it(name: str, tmp_path: Path) -> None:
    count(name, tmp_path / name)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("granitemoehybrid", {"num_local_experts": 0, "position_embedding_type": None}),
        ("nemotron_h", {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]}),
    ],
)
def test_recurrent_families_without_experts(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    file, model = write(name, tmp_path / "m", "Q8_0", **{**CHANGES[name], **changes})
    check(file, model, 1, 2)
    counted_alike(file)


def test_a_directory_and_a_split_file_are_the_same_model(tmp_path: Path) -> None:
    file, model = write("qwen2", tmp_path / "whole")
    first, _ = write("qwen2", tmp_path / "split", split=True)
    assert first.name == "model-00001-of-00007.gguf"
    for path in (file.parent, first, first.parent):
        assert local(str(path)) == path
        check(path, model, 1, 2)
    assert describe(first, read_config(first)).name == "model"
    (tmp_path / "split" / "model-00003-of-00007.gguf").unlink()
    with pytest.raises(ModelError, match=r"model-00003-of-00007\.gguf cannot be read.*download the model again"):
        Checkpoint(first)


def test_a_split_that_cuts_a_block_is_refused_before_loading(tmp_path: Path) -> None:
    file, _ = write("llama", tmp_path / "llama", "Q8_0")
    with pytest.raises(PlanError, match="width 96 in groups of 32 cannot be shared by 4 ranks; use --tp 3 or less"):
        run_split(file, plan_for(file, 4, 1), lambda model, world: None)


def test_experts_and_matrices_of_k_quants_are_cut_over_ranks(tmp_path: Path) -> None:
    """At random, as the gguf library cannot write them: what it reads of the file is what each rank holds."""
    file, _ = write("mixtral", tmp_path / "m", "Q8_0", hidden_size=256, head_dim=32, intermediate_size=512)
    kinds = {"Q4_K": 144, "Q6_K": 210}
    directory = tmp_path / "k"
    directory.mkdir()
    copy = directory / "model.gguf"
    reader, draw = gguf.GGUFReader(file), np.random.default_rng(0)
    writer = gguf.GGUFWriter(copy, "llama")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if array else None)
    expected = {}
    for tensor in reader.tensors:
        if tensor.tensor_type == GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, tensor.data)
            continue
        kind = "Q6_K" if "down" in tensor.name or "attn_v" in tensor.name else "Q4_K"
        shape = tuple(int(each) for each in tensor.shape[::-1])
        blocks = draw.integers(0, 256, (*shape[:-1], shape[-1] // 256, kinds[kind]), np.uint8)
        at = slice(208, 210) if kind == "Q6_K" else slice(0, 4)
        blocks[..., at] = (draw.random((*blocks.shape[:-1], (at.stop - at.start) // 2)) * 1e-3).astype("<f2").view("u1")
        data = blocks.reshape(*shape[:-1], -1)
        expected[tensor.name] = gguf.quants.dequantize(data, GGMLQuantizationType[kind])
        writer.add_tensor(tensor.name, data, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with Checkpoint(copy) as checkpoint:
        gate_up = checkpoint.read("model.layers.0.mlp.experts.gate_up_proj")[0].numpy()
        down = checkpoint.read("model.layers.1.mlp.experts.down_proj")[0].numpy()
    gate, up = (expected[f"blk.0.ffn_{each}_exps.weight"] for each in ("gate", "up"))
    assert np.array_equal(gate_up, np.concatenate([gate, up], axis=1))
    assert np.array_equal(down, expected["blk.1.ffn_down_exps.weight"])
    whole, halves = logits_of(copy, 1, 1), logits_of(copy, 2, 1)
    assert (whole - halves).abs().max() < 1e-3 * whole.abs().max()


def send(name: str, tmp_path: Path, **changes: Any) -> None:
    file, _ = write(name, tmp_path / name, "Q8_0", **changes)
    plan = plan_for(file, 2, 2)
    copies = [only_needed(file.parent, plan, rank, tmp_path / f"{name}-{rank}") for rank in range(plan.world_size)]
    whole, part = parameters([file.parent] * plan.world_size, plan), parameters(copies, plan)
    for one, other in zip(whole, part, strict=True):
        assert one.keys() == other.keys()
        assert [key for key in one if not torch.equal(one[key], other[key])] == []


def test_a_rank_loads_from_the_parts_that_it_needs(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    send("llama", tmp_path, **WIDE, rope_parameters={**rope, "original_max_position_embeddings": 64})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama"])
def test_a_rank_of_every_family_loads_from_the_parts_that_it_needs(name: str, tmp_path: Path) -> None:
    send(name, tmp_path, **WIDE, **CHANGES.get(name, {}))


def test_models_are_told_apart_by_their_weights(tmp_path: Path) -> None:
    file, _ = write("llama", tmp_path / "a")
    layout = read_layout(file)
    assert Layout.unpack(layout.pack()) == layout == read_layout(file.parent)
    before = identity(file, layout)
    content = bytearray(file.read_bytes())
    content[layout.places()["blk.2.attn_norm.weight"].offset] ^= 1
    file.write_bytes(content)
    assert identity(file, read_layout(file)) != before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.embedding_length", 3),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", 4097),
        ("llama.attention.key_length", 1 << 31),
        ("llama.block_count", 0),
        ("llama.block_count", 1 << 31),
        ("llama.context_length", (1 << 32) - 1),
    ],
)
def test_a_number_that_cannot_be_is_refused_before_anything_is_made_of_it(key: str, value: int, tmp_path: Path) -> None:
    file, _ = write("llama", tmp_path / "llama")
    reader = gguf.GGUFReader(file)
    base, place = (each.__array_interface__["data"][0] for each in (reader.data, reader.fields[key].parts[-1]))
    content = bytearray(file.read_bytes())
    content[place - base : place - base + 4] = value.to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(FerruleError, match=r"model\.gguf"):
        run_split(file, plan_for(file, 1, 1), lambda model, world: None)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("lfm2", "lfm2.shortconv.l_cache", 0),
        ("lfm2", "lfm2.shortconv.l_cache", 5),
        ("lfm2", "lfm2.attention.head_count_kv", 4),
        ("granitemoehybrid", "granitehybrid.ssm.time_step_rank", 3),
        ("granitemoehybrid", "granitehybrid.ssm.group_count", 3),
        ("granitemoehybrid", "granitehybrid.attention.head_count", 0),
        ("nemotron_h", "nemotron_h_moe.ssm.time_step_rank", 3),
        ("nemotron_h", "nemotron_h_moe.block_count", 5),
        ("qwen3_next", "qwen3next.ssm.group_count", 3),
        ("qwen3_next", "qwen3next.ssm.state_size", 9),
    ],
)
def test_numbers_of_recurrent_layers_that_cannot_be_are_refused(
    name: str, key: str, value: int, tmp_path: Path
) -> None:
    file, _ = write(name, tmp_path / name)
    content, reader = bytearray(file.read_bytes()), gguf.GGUFReader(file)
    base = reader.data.__array_interface__["data"][0]
    for part in reader.fields[key].data:
        place = reader.fields[key].parts[part].__array_interface__["data"][0] - base
        content[place : place + 4] = value.to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(FerruleError, match=r"model\.gguf"):
        run_split(file, plan_for(file, 1, 1), lambda model, world: None)


def test_a_file_that_is_not_there_is_no_hub_id() -> None:
    with pytest.raises(ModelError, match=r"models/none\.gguf: no such file"):
        local("models/none.gguf")

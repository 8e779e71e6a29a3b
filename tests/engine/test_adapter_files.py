"""Files of LoRA adapters: what is read of them, and what is refused, by name."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ferrule.engine.adapters import CONFIG, WEIGHTS, find, read_pairs
from ferrule.engine.options import Adapter, RankOptions, parse_adapters
from ferrule.errors import ConfigError, ModelError
from ferrule.model import demo_path, read_model
from ferrule.plan import make_plan

PREFIX = "base_model.model.model.layers"


def write(directory: Path, tensors: dict[str, tuple[int, ...]] | None = None, **config: Any) -> Adapter:
    shapes = tensors or {
        f"{PREFIX}.{layer}.self_attn.{name}.lora_{side}.weight": (rank, 8) if side == "A" else (6, rank)
        for layer, name, rank in ((0, "q_proj", 4), (1, "q_proj", 2), (1, "v_proj", 4))
        for side in "AB"
    }
    directory.mkdir(exist_ok=True)
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, directory / WEIGHTS)
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "rank_pattern": {"1.self_attn.q_proj": 2}}
    (directory / CONFIG).write_text(json.dumps(given | config))
    return find(Adapter("poet", str(directory)))


def test_scales_follow_ranks_alphas_and_their_patterns(tmp_path: Path) -> None:
    told = [
        ({}, [2.0, 4.0, 2.0]),
        ({"use_rslora": True}, [8 / sqrt(4), 8 / sqrt(2), 8 / sqrt(4)]),
        ({"alpha_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 1}, "fan_in_fan_out": True}, [0.5, 1.0, 0.25]),
    ]
    for config, scales in told:
        pairs = read_pairs(write(tmp_path / "poet", **config))
        assert [pair.module for pair in pairs] == [
            "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj",
        ]  # fmt: skip
        assert [pair.scale for pair in pairs] == scales


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"peft_type": "IA3"}, "of the kind 'IA3'"),
        ({"use_dora": True}, "has DoRA"),
        ({"bias": "all"}, "changes biases"),
        ({"modules_to_save": ["lm_head"]}, r"trained whole \(modules_to_save\)"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "as those of experts"),
        ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
        ({"r": 8}, r"has shape \(4, 8\) and .* \(6, 4\), but .* says rank 8"),
        ({"lora_alpha": "much"}, "says r 4 and lora_alpha 'much'"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern .* cannot be read"),
    ],
)
def test_what_means_something_else_is_refused(config: dict[str, Any], told: str, tmp_path: Path) -> None:
    adapter = write(tmp_path / "poet", **config)
    with pytest.raises(ModelError, match=told):
        read_pairs(adapter)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({f"{PREFIX}.0.q.lora_A.weight": (4, 8)}, "without its other half"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": (4, 8)}, "adapts an embedding"),
        ({f"{PREFIX}.0.q.lora_magnitude_vector": (8,)}, "DoRA"),
        ({"base_model.model.lm_head.weight": (8, 8)}, "a weight of the base itself"),
        ({"model.layers.0.q.lora_A.weight": (4, 8)}, "no matrix of LoRA on a linear layer as PEFT names them"),
        ({f"{PREFIX}.0.q.lora_A.weight": (4, 8, 1)}, r"F32 tensor of shape \(4, 8, 1\)"),
    ],
)
def test_tensors_that_are_not_run_are_named(tensors: dict[str, tuple[int, ...]], told: str, tmp_path: Path) -> None:
    adapter = write(tmp_path / "poet", tensors)
    with pytest.raises(ModelError, match=told) as raised:
        read_pairs(adapter)
    assert next(iter(tensors)) in str(raised.value)


def test_files_that_are_not_there_or_changed(tmp_path: Path) -> None:
    before = write(tmp_path / "poet")
    assert write(tmp_path / "poet", lora_alpha=9).identity != before.identity
    (tmp_path / "poet" / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors cannot be read .*save_pretrained"):
        find(Adapter("poet", str(tmp_path / "poet")))
    with pytest.raises(ModelError, match=r"adapter 'poet': .*elsewhere: no such directory"):
        find(Adapter("poet", str(tmp_path / "elsewhere")))


def test_names_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    adapters = parse_adapters(["poet=a", "sql-2=owner/adapter"])
    assert adapters == (Adapter("poet", str(tmp_path / "a")), Adapter("sql-2", "owner/adapter"))
    for wrong in ("poet", "=a", "a:b=c", "poet="):
        with pytest.raises(ConfigError, match="not of the form NAME=PATH"):
            parse_adapters([wrong])
    with pytest.raises(ConfigError, match="given twice"):
        parse_adapters(["poet=a", "poet=b"])
    plan = make_plan(read_model(str(demo_path())))
    options = RankOptions("d", "auto", plan, 1, 64, 4, 64, (), adapters=adapters)
    assert RankOptions.from_json(options.to_json()) == options

"""What a model that takes images is, for the planner: the same by its configuration and by transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from seeing_models import CONFIGS, make
from tiny_models import COMMON

from ferrule.engine import spec
from ferrule.engine.source import describe, read_config, read_seeing
from ferrule.engine.spec import read_spec
from ferrule.errors import FerruleError, ModelError
from ferrule.model import ModelSpec, read_model


@pytest.mark.parametrize(
    "name", ["qwen3_vl", *(pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS if name != "qwen3_vl")]
)
def test_it_is_told_as_by_transformers_whatever_its_configuration_leaves_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make(name, tmp_path) / "config.json"
    told = json.loads(file.read_text())
    found = describe(tmp_path, read_config(tmp_path))
    assert found == read_model(str(tmp_path))
    assert 0 < found.vision.bytes < found.bytes
    assert found.rank_bytes(last_layer=2) - found.vision.bytes == found.embedding.bytes + sum(found.layer_bytes[:2])
    assert found.notes == ()
    with monkeypatch.context() as patched:
        patched.delattr(spec, "read_config")
        assert read_spec(tmp_path) == found, "transformers is not asked"
    for field in told["text_config"].keys() & {*COMMON, "sliding_window", "layer_types", "rope_parameters"}:
        text = {key: value for key, value in told["text_config"].items() if key != field}
        file.write_text(json.dumps(told | {"text_config": text}))
        by_us, by_transformers = outcome(tmp_path, ask=False), outcome(tmp_path, ask=True)
        assert by_us == by_transformers, field


def outcome(directory: Path, *, ask: bool) -> ModelSpec | tuple[type, str]:
    try:
        return describe(directory, read_config(directory)) if ask else read_spec(directory)
    except FerruleError as error:
        return type(error), str(error)


def test_the_language_model_has_what_only_the_whole_one_says(tmp_path: Path) -> None:
    file = make("gemma3", tmp_path) / "config.json"
    told = json.loads(file.read_text())
    told["text_config"].pop("dtype", None)
    file.write_text(json.dumps(told | {"dtype": "bfloat16", "tie_word_embeddings": True}))
    text = read_config(tmp_path)
    assert (str(text.dtype), text.tie_word_embeddings) == ("torch.bfloat16", True)
    assert text.architectures == ["Gemma3ForConditionalGeneration"]
    whole = read_seeing(tmp_path)
    assert whole is not None
    assert whole.get_text_config().num_hidden_layers == text.num_hidden_layers


def test_others_are_refused_by_name(tmp_path: Path) -> None:
    config = {"model_type": "llava", "text_config": {"model_type": "llama"}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"a multimodal llava model; of those only gemma3, .*qwen3_vl_moe are run"):
        read_config(tmp_path)

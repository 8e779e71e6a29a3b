"""Descriptions of models without transformers against those from transformers' configurations."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_encoders import add_modules, add_tokenizer, make_encoder
from tiny_models import CONFIGS, COUNTED, make

from ferrule.engine import spec
from ferrule.engine.source import describe, read_config
from ferrule.engine.spec import read_spec
from ferrule.errors import FerruleError, ModelError
from ferrule.model import ModelSpec

FAMILIES = CONFIGS | COUNTED


def all_families(*quick: str) -> list[object]:
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name not in quick)]


@pytest.mark.parametrize("name", all_families("llama"))
def test_a_model_is_told_as_by_transformers_whatever_its_configuration_leaves_out(name: str, tmp_path: Path) -> None:
    file = make(name, tmp_path) / "config.json"
    assert read_spec(tmp_path) == describe(tmp_path, read_config(tmp_path))
    told = json.loads(file.read_text())
    for field in told.keys() - {"model_type", "architectures"}:
        file.write_text(json.dumps({key: value for key, value in told.items() if key != field}))
        assert outcome(read_spec, tmp_path) == outcome(lambda path: describe(path, read_config(path)), tmp_path), field


def outcome(read: Callable[[Path], ModelSpec], directory: Path) -> ModelSpec | tuple[type, str]:
    try:
        return read(directory)
    except FerruleError as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_transformers_is_not_asked_where_the_configuration_says_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(name, tmp_path)
    monkeypatch.delattr(spec, "read_config")
    assert read_spec(tmp_path).model_type == name
    assert read_spec(tmp_path, "int8").stored == "int8 in groups of 32"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "nonesuch"},
            r"config\.json: model_type 'nonesuch' is not a family known here, nor to the installed",
        ),
        ({"model_type": None}, "no model_type says which family"),
        ({"num_hidden_layers": "four"}, "cannot be read as a model configuration"),
        ({"quantization_config": {"quant_method": "quip"}}, r"is quantized \(quip\)"),
        ({"layer_types": ["linear_attention"] * 4}, "of a kind that this engine does not run: linear_attention"),
    ],
)
def test_what_is_not_run_is_refused_in_the_words_of_before(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    file = make("qwen3", tmp_path) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    for refuse in (read_spec, read_config):
        with pytest.raises(ModelError, match=message):
            refuse(tmp_path)


def test_a_family_that_is_not_known_here_is_left_to_transformers(tmp_path: Path) -> None:
    file = make("llama", tmp_path) / "config.json"
    changed = json.loads(file.read_text()) | {"model_type": "helium", "architectures": ["HeliumForCausalLM"]}
    file.write_text(json.dumps(changed))
    assert read_spec(tmp_path) == replace(describe(tmp_path, read_config(tmp_path)), model_type="helium")


def test_a_model_is_prepared_without_torch_and_transformers(tmp_path: Path) -> None:
    """Decoders, and encoders with their dense layers and BERT's tokenizers."""
    add_tokenizer(make_encoder("bert", tmp_path))
    add_modules(tmp_path, "mean_tokens", (32, 24, "Tanh"))
    code = (
        "import sys, ferrule.serve.server; from ferrule.engine import EngineOptions;"
        "from ferrule.engine.host.prepare import prepare;"
        "[prepare(EngineOptions(each)) for each in sys.argv[1:]];"
        "print({'torch', 'transformers', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"

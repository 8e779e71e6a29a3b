"""How a model's vectors are made, from the files of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule.errors import ModelError
from ferrule.model import Embedding, read_embedding
from ferrule.model.pooling import DenseLayer

KINDS = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "2_Dense", "LSTM": "2"}
QWEN = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}
BGE = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
MEAN = {"pooling_mode_mean_tokens": True}


def write(directory: Path, *kinds: str, pooling: Any = None, **config: Any) -> Path:
    modules = [{"idx": at, "path": KINDS[kind], "type": f"st.models.{kind}"} for at, kind in enumerate(kinds)]
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (directory / "1_Pooling").mkdir()
        (directory / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return directory


@pytest.mark.parametrize(
    ("kinds", "pooling", "found"),
    [
        (("Transformer", "Pooling", "Normalize"), QWEN, Embedding("last", normalize=True)),
        (("Transformer", "Pooling", "Normalize"), BGE, Embedding("cls", normalize=True)),
        (("Transformer", "Pooling"), MEAN, Embedding("mean", normalize=False)),
        (("Transformer", "Pooling"), {"pooling_mode": "lasttoken"}, Embedding("last", normalize=False)),
        (("Transformer", "Pooling"), {"pooling_mode_max_tokens": True}, Embedding("max", normalize=False)),
        (("Transformer", "Pooling"), {"pooling_mode": "weightedmean"}, Embedding("weighted_mean", normalize=False)),
    ],
)
def test_pooling_is_read(kinds: tuple[str, ...], pooling: Any, found: Embedding, tmp_path: Path) -> None:
    assert read_embedding(write(tmp_path, *kinds, pooling=pooling)) == found


def test_a_model_without_such_files_gives_its_last_token(tmp_path: Path) -> None:
    assert read_embedding(tmp_path) == Embedding("last", normalize=True)
    (tmp_path / "config.json").write_text(json.dumps({"matryoshka_dimensions": [256, 64]}))
    assert read_embedding(tmp_path).dimensions == (256, 64)


def test_any_dimensions(tmp_path: Path) -> None:
    assert read_embedding(write(tmp_path, "Transformer", "Pooling", pooling=MEAN, is_matryoshka=True)).matryoshka


@pytest.mark.parametrize("pooling", [{**MEAN, **QWEN}, {"pooling_mode": "median"}, {}])
def test_other_ways_of_pooling_are_refused(pooling: Any, tmp_path: Path) -> None:
    found = read_embedding(write(tmp_path, "Pooling", pooling=pooling))
    assert "other than one of cls, max, mean" in str(found.refusal)


def test_dense_layers_are_read(tmp_path: Path) -> None:
    write(tmp_path, "Transformer", "Pooling", "Dense", pooling=MEAN)
    with pytest.raises(ModelError, match=r"2_Dense/config\.json describes a dense layer"):
        read_embedding(tmp_path)
    told = tmp_path / "2_Dense/config.json"
    told.parent.mkdir()
    for name in ("torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"):
        told.write_text(json.dumps({"in_features": 64, "out_features": 32, "activation_function": name}))
        layer = DenseLayer("2_Dense", name.rpartition(".")[2])  # type: ignore[arg-type]
        assert read_embedding(tmp_path) == Embedding("mean", normalize=False, dense=(layer,))
    for strange in ({"module_input_name": "token_embeddings"}, {"use_residual": True}):
        told.write_text(json.dumps(strange))
        assert "module 2_Dense is of tokens, or adds a residual" in str(read_embedding(tmp_path).refusal)
    told.write_text(json.dumps({"activation_function": "torch.nn.modules.activation.Mish"}))
    assert "'Mish'" in str(read_embedding(tmp_path).refusal)


@pytest.mark.parametrize(
    ("first", "runs"),
    [
        ({"module_output_name": "token_embeddings"}, True),
        ({"modality_config": {"text": {"method_output_name": "last_hidden_state"}}}, True),
        ({"module_output_name": "sentence_embedding"}, False),
        ({"modality_config": {"text": {"method_output_name": "pooler_output"}}}, False),
    ],
)
def test_vectors_of_something_else_than_hidden_states_are_refused(first: Any, runs: bool, tmp_path: Path) -> None:
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(first))
    found = read_embedding(write(tmp_path, "Transformer", "Pooling", pooling=MEAN))
    assert (found.refusal is None) is runs


@pytest.mark.parametrize("kinds", [("Pooling", "LSTM"), ("Pooling", "Normalize", "Dense"), ("Dense",)])
def test_further_layers_are_refused_by_name(kinds: tuple[str, ...], tmp_path: Path) -> None:
    found = read_embedding(write(tmp_path, "Transformer", *kinds, pooling=MEAN))
    assert repr(kinds[-1]) in str(found.refusal)


def test_an_encoder_makes_vectors_only_of_texts_that_it_was_trained_with(tmp_path: Path) -> None:
    assert read_embedding(tmp_path, encoder=True) == Embedding("mean", only=True)
    settings = tmp_path / "sentence_bert_config.json"
    settings.write_text('{"max_seq_length": 256, "do_lower_case": true}')
    assert read_embedding(tmp_path, encoder=True) == Embedding("mean", only=True, longest=256, lower=True)
    settings.write_text('{"max_seq_length": null}')
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    assert read_embedding(tmp_path).longest == 512
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    assert read_embedding(tmp_path).longest is None


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"1_Pooling/config\.json says how hidden states are pooled"):
        read_embedding(write(tmp_path, "Transformer", "Pooling"))
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ModelError, match=r"modules\.json cannot be read"):
        read_embedding(tmp_path)

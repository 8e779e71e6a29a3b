"""How a model's vectors are made, from the files of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule.errors import ModelError
from ferrule.model import Embedding, read_embedding

KINDS = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "2_Dense"}
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


@pytest.mark.parametrize("pooling", [{**MEAN, **QWEN}, {"pooling_mode_max_tokens": True}, {"pooling_mode": "max"}, {}])
def test_other_ways_of_pooling_are_refused(pooling: Any, tmp_path: Path) -> None:
    assert "mean, last or cls" in str(read_embedding(write(tmp_path, "Pooling", pooling=pooling)).refusal)


def test_further_layers_are_refused_by_name(tmp_path: Path) -> None:
    found = read_embedding(write(tmp_path, "Transformer", "Pooling", "Dense", pooling=MEAN))
    assert "'Dense'" in str(found.refusal)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"1_Pooling/config\.json says how hidden states are pooled"):
        read_embedding(write(tmp_path, "Transformer", "Pooling"))
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ModelError, match=r"modules\.json cannot be read"):
        read_embedding(tmp_path)

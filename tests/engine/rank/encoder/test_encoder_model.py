"""Encoders, compared with transformers' own classes, which see one text at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import FAMILIES, make_encoder
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from ferrule import fabric
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch, Kind, Span
from ferrule.engine.rank.encoder.groups import grouped
from ferrule.engine.rank.encoder.runner import EncoderRunner
from ferrule.engine.rank.encoder.trial import try_encoder
from ferrule.engine.rank.runner import make_runner
from ferrule.engine.source import describe, read_config
from ferrule.engine.spec import read_spec
from ferrule.errors import EngineError, ModelError, PlanError
from ferrule.model import read_model
from ferrule.model.families.encoders import ENCODERS
from ferrule.plan import make_plan

TEXTS = [[5, 17, 99, 42, 8, 77, 23, 64, 12, 90, 31, 7, 55] * 6, [11, 3, 120], [9], [4, 8, 15, 16, 23, 42] * 10]


@contextmanager
def running(directory: Path, **changes: Any) -> Iterator[EncoderRunner]:
    given: dict[str, Any] = {"max_sequences": 4, "batch_tokens": 64, "end_tokens": (), **changes}
    options = RankOptions(str(directory), "float32", make_plan(read_spec(directory)), 1, 64, **given)
    with fabric.init() as world:
        runner = make_runner(options, world, lambda progress: None)
        assert isinstance(runner, EncoderRunner)
        yield runner


def check(runner: EncoderRunner, directory: Path) -> None:
    """Texts together have the hidden states that each has alone by transformers."""
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    spans = tuple(Span(number, 0, len(text), False) for number, text in enumerate(TEXTS))
    found = runner.run(Batch(spans, tuple(token for text in TEXTS for token in text), kind=Kind.EMBED))
    assert found is not None
    with torch.inference_mode():
        right = [model(torch.tensor([text])).last_hidden_state[0] for text in TEXTS]
    np.testing.assert_allclose(runner.device.download(found).numpy(), torch.cat(right).numpy(), atol=1e-5)


def test_every_family_that_is_called_an_encoder_is_tried() -> None:
    assert set(FAMILIES) >= ENCODERS


@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_states_are_those_of_each_text_alone(name: str, tmp_path: Path) -> None:
    spec = read_spec(make_encoder(name, tmp_path))
    assert spec == describe(tmp_path, read_config(tmp_path))
    assert spec.encoder
    assert spec.known_family
    assert spec.cache_bytes(64) == 0
    assert spec.parameters * 4 == spec.bytes
    with running(tmp_path) as runner:
        assert runner.weight_bytes == spec.rank_bytes() == spec.in_engine.rank_bytes()
        check(runner, tmp_path)
        trial = try_encoder(runner, spec.vocab_size)
        assert (trial.cache_tokens, trial.sequences) == (4 * 64, 4)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_what_stands_on_the_hidden_states_is_left_out(name: str, tmp_path: Path) -> None:
    """As checkpoints have it that were trained to fill in masks, and older ones, with positions that are no weights."""
    make_encoder(name, tmp_path, AutoModelForMaskedLM)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    if name == "bert":
        tensors["bert.embeddings.position_ids"] = torch.arange(96).unsqueeze(0)
        tensors = {key.replace("LayerNorm.weight", "LayerNorm.gamma"): each for key, each in tensors.items()}
    save_file(tensors, file, {"format": "pt"})
    told = json.loads((tmp_path / "config.json").read_text())
    assert told.pop("dtype") == "float32"
    (tmp_path / "config.json").write_text(json.dumps(told))
    spec = read_spec(tmp_path)
    assert any("no part of the encoder" in note for note in spec.notes)
    with running(tmp_path) as runner:
        assert runner.weight_bytes == spec.in_engine.rank_bytes()
        check(runner, tmp_path)
    planned = read_model(str(tmp_path))
    assert (planned.parameters, planned.bytes, planned.stored) == (spec.parameters, spec.bytes, "float32")


def test_packed_while_they_are_loaded_they_take_what_is_planned(tmp_path: Path) -> None:
    make_encoder("bert", tmp_path, hidden_size=64, intermediate_size=128)
    spec = read_spec(tmp_path, "int8")
    with running(tmp_path, weights="int8") as runner:
        assert runner.weight_bytes == spec.in_engine.rank_bytes()
        assert runner.weight_bytes < 0.6 * read_spec(tmp_path).bytes
        try_encoder(runner, spec.vocab_size)


def test_an_accelerator_computes_the_same(tmp_path: Path) -> None:
    with running(make_encoder("mpnet", tmp_path), device="emulated") as runner:
        check(runner, tmp_path)
        try_encoder(runner, 131)


def test_positions_behind_that_of_padding_count(tmp_path: Path) -> None:
    for name, most in (("bert", 96), ("roberta", 94), ("mpnet", 94)):
        directory = make_encoder(name, tmp_path / name)
        assert read_spec(directory).max_context == read_model(str(directory)).max_context == most


def test_none_is_split(tmp_path: Path) -> None:
    for name in ("bert", "gemma3_text"):
        spec = read_spec(make_encoder(name, tmp_path / name))
        for split in ({"tensor": 2}, {"pipeline": 2}):
            with pytest.raises(PlanError, match=r"--.p 2: an encoder runs on one rank"):
                make_plan(spec, **split)


def test_rerankers_are_refused(tmp_path: Path) -> None:
    make_encoder("roberta", tmp_path, AutoModelForSequenceClassification)
    with pytest.raises(ModelError, match=r"scores pairs of them \(a reranker\)"):
        read_spec(tmp_path)


def test_what_only_calls_itself_bert_is_refused(tmp_path: Path) -> None:
    """As models with code of their own do."""
    file = make_encoder("bert", tmp_path) / "model.safetensors"
    more = "encoder.layer.0.mlp.gated_layers.weight"
    save_file(load_file(file) | {more: torch.zeros(4, 4)}, file, {"format": "pt"})
    with (
        pytest.raises(ModelError, match=rf"holds {more}, of which transformers' BertModel makes nothing"),
        running(tmp_path),
    ):
        pass
    make_encoder("bert", tmp_path, position_embedding_type="alibi")
    with pytest.raises(ModelError, match=r"tells positions in a way that is not run here \(alibi\)"):
        read_spec(tmp_path)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    make_encoder("bert", tmp_path)
    file = tmp_path / "model.safetensors"
    lacking = {key: each for key, each in load_file(file).items() if "1.attention.self.key.weight" not in key}
    save_file(lacking, file, {"format": "pt"})
    lacks = r"no weights for encoder\.layer\.1\.attention\.self\.key\.weight"
    with pytest.raises(ModelError, match=lacks), running(tmp_path):
        pass


def test_padding_that_is_seen_is_found_out(tmp_path: Path) -> None:
    with running(make_encoder("bert", tmp_path)) as runner:
        inner = runner.encoder.model
        runner.encoder.model = lambda input_ids, attention_mask: inner(input_ids=input_ids)
        with pytest.raises(EngineError, match=r"self-test: texts that are computed together"):
            try_encoder(runner, 131)
        runner.options = replace(runner.options, self_test=False)
        try_encoder(runner, 131)
        with pytest.raises(EngineError, match="whole texts"):
            runner.run(Batch((Span(0, 0, 1, True),), (5,)))


def test_a_decoder_that_stays_one_is_found_out(tmp_path: Path) -> None:
    with running(make_encoder("qwen3", tmp_path)) as runner:
        try_encoder(runner, 131)
        runner.encoder.model.config.is_causal = True  # as classes have it that make masks of their own
        with pytest.raises(ModelError, match="Qwen3Model sees no later tokens"):
            try_encoder(runner, 131)


def test_texts_are_computed_together_where_they_are_alike() -> None:
    assert grouped([]) == []
    assert grouped([5, 9, 7]) == [[1, 2, 0]]
    assert grouped([500, 3, 480, 4, 510]) == [[4, 0, 2], [3, 1]]
    assert grouped([100, 1, 1]) == [[0], [1, 2]]

"""Weights that a layer lacks, told by the layers that are like it."""

from __future__ import annotations

import pytest
from written_models import CONFIG, tensors_of_config

from ferrule.model.count import Counts, lacking
from ferrule.model.families.shape import read_shape

NAMES = [*tensors_of_config()]
"""Layer 0 is dense, 1 and 2 have experts."""


def missing(*without: str, more: tuple[str, ...] = (), changes: dict[str, object] | None = None) -> str | None:
    shape = read_shape(CONFIG | (changes or {}), "config.json")
    return lacking(shape, [Counts(name, 1, 1) for name in (*NAMES, *more) if name not in without])


def test_whole_models_and_layers_of_different_kinds_lack_nothing() -> None:
    assert missing() is None
    assert missing(*(name for name in NAMES if ".layers.0." in name)) is None  # `count` tells of it
    assert missing(*(name for name in NAMES if name.endswith(".q_proj.weight"))) is None  # ranks tell of it


@pytest.mark.parametrize("name", [name for name in NAMES if ".layers.2." in name])
def test_each_weight_of_a_layer_is_missed(name: str) -> None:
    assert missing(name) == name


def test_what_only_some_layers_need_is_not_missed() -> None:
    bias = "model.layers.1.self_attn.o_proj.bias"  # of quantised modules alone
    scale = "model.layers.1.self_attn.k_scale"
    indexer = "model.layers.1.self_attn.indexer.wq_b.weight"
    beyond = "model.layers.3.mlp.up_proj.weight"  # multi-token prediction
    assert missing(more=(bias, scale, indexer, beyond)) is None


def test_nothing_is_said_of_a_family_that_is_not_known() -> None:
    name = next(name for name in NAMES if ".layers.2." in name)
    assert missing(name, changes={"model_type": "nonesuch", "architectures": ["Nonesuch"]}) is None

"""A weight format that is none of ours is registered in one place: reading, cutting, multiplying and sending follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from halved import Halved, PackedHalved, halve
from safetensors.torch import save_file
from test_parity import PIECES, TOKENS, forward, plan_for, run_split
from test_shard_needs import only_needed
from thread_group import ThreadGroup
from tiny_models import make
from torch.nn import functional
from transformers import AutoModelForCausalLM

from ferrule.engine.rank.model import ShardedModel
from ferrule.engine.source import describe, read_config
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.formats import FORMATS
from ferrule.errors import ModelError, PlanError
from ferrule.plan.cost import weight_bytes

GROUP = 16


@pytest.fixture
def halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose layers are stored halved; its numbers lie beside it, in ``model-plain``."""
    monkeypatch.setattr("ferrule.engine.weights.formats.registry.FORMATS", [Halved(), *FORMATS])
    directory = tmp_path / "model"
    make("llama", directory)
    halve(directory, GROUP)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "halved"}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def reference(directory: Path, ids: torch.Tensor) -> torch.Tensor:
    plain = directory.with_name("model-plain")
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(ids).logits[0]
    return logits


@pytest.mark.parametrize("split", [(1, 1), (2, 1), (2, 2)])
def test_a_model_of_a_new_format_gives_the_logits_of_its_numbers(halved: Path, split: tuple[int, int]) -> None:
    plan = plan_for(halved, *split)
    ids = torch.randint(3, 131, (1, TOKENS), generator=torch.Generator().manual_seed(1))

    def body(model: ShardedModel, world: ThreadGroup) -> tuple[torch.Tensor | None, int, int]:
        pieces = [forward(model, world, plan, ids[:, a:b], a) for a, b in PIECES]
        packed = sum(isinstance(getattr(each, "weight", None), PackedHalved) for each in model.model.modules())
        logits = None if pieces[0] is None else torch.cat([piece for piece in pieces if piece is not None])
        return logits, packed, model.weight_bytes

    results = run_split(halved, plan, body)
    expected = reference(halved, ids)
    assert [packed for _, packed, _ in results] == [7 * 4 // plan.pipeline] * plan.world_size
    assert tuple(held for _, _, held in results) == weight_bytes(describe(halved, read_config(halved)), plan)
    logits = next(logits for logits, _, _ in results if logits is not None)
    assert (logits - expected).abs().max() < 1e-4


def test_a_split_through_a_group_is_refused_before_loading(halved: Path) -> None:
    plan = plan_for(halved, 5, 1)  # of 4 key/value heads with 16 columns for each, of which two ranks share one
    why = r"o_proj\.weight is stored in groups of 16 \(halved\), and this split cuts it at \d+ of 64"
    with pytest.raises(PlanError, match=why):
        run_split(halved, plan, lambda model, world: None)


def test_hosts_without_the_files_get_all_parts_of_a_slice(halved: Path, tmp_path: Path) -> None:
    plan = plan_for(halved, 2, 1)
    copy = only_needed(halved, plan, 0, tmp_path / "copy")
    name = "model.layers.0.self_attn.o_proj.weight"
    with Checkpoint(halved) as whole, Checkpoint(copy) as part:
        expected, found = whole.read(name)[0], part.read(name)[0]
    assert torch.equal(expected[:, :32], found[:, :32])
    assert not torch.equal(expected[:, 32:], found[:, 32:])


def test_a_packed_weight_is_for_products_only(halved: Path) -> None:
    packed = PackedHalved(torch.ones(2, 16, dtype=torch.int8), torch.ones(2, 1), torch.float32)
    assert functional.linear(torch.ones(1, 16), packed, torch.ones(2)).tolist() == [[17.0, 17.0]]  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="a packed weight is used by embedding"):
        functional.embedding(torch.tensor([0]), packed)  # type: ignore[arg-type]


def test_a_format_that_is_not_there_is_named(halved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.engine.weights.formats.registry.FORMATS", FORMATS)
    with pytest.raises(ModelError, match=r"quantized \(halved\), which this engine does not run"):
        describe(halved, read_config(halved))


def test_a_dtype_that_is_not_run_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4, dtype=torch.float8_e8m0fnu)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="a has the dtype 'F8_E8M0', which is not run here"):
        Checkpoint(tmp_path)

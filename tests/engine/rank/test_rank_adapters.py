"""LoRA adapters on ranks: each sequence of a batch as PEFT and transformers compute it alone, on every split."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from thread_group import Shared, ThreadGroup, run_ranks
from tiny_adapters import ATTENTION, DENSE, adapted, make_adapter
from tiny_models import make

from ferrule.engine.adapters import find, read_pairs
from ferrule.engine.devices import open_device
from ferrule.engine.options import Adapter
from ferrule.engine.rank.adapters.lora import ranges_of
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.model import build
from ferrule.engine.source import describe, read_config
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.errors import ModelError
from ferrule.plan import make_plan

FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
SPLITS = [(1, 1), (2, 1), (1, 2), (2, 2)]
ROWS = {3: (1, 6), 4: (0, 5), 5: (2, 7), 6: (1, 3)}
"""Number of each sequence -> its adapter and how many tokens it brings first."""


def prompt(sequence: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(sequence)
    return list(torch.randint(3, 131, (count,), generator=generator).tolist())


def run(base: Path, adapters: tuple[Adapter, ...], split: tuple[int, int], weights: str | None = None) -> Any:
    """Logits of the last token of each sequence after two batches, by the driver."""
    plan = make_plan(describe(base, read_config(base)), tensor=split[0], pipeline=split[1])
    stages = [Shared(plan.tensor) for _ in range(plan.pipeline)]
    numbers = tuple(number for number, _ in ROWS.values())
    first = tuple(Span(each, 0, count, True, count) for each, (_, count) in ROWS.items())
    then = tuple(Span(each, count, 1, True) for each, (_, count) in ROWS.items())
    whole = {each: prompt(each, count + 1) for each, (_, count) in ROWS.items()}
    batches = [
        Batch(first, tuple(token for tokens in whole.values() for token in tokens[:-1]), adapters=numbers),
        Batch(then, tuple(tokens[-1] for tokens in whole.values()), adapters=numbers),
    ]

    def rank(world: ThreadGroup) -> Any:
        shard, device = plan.shards[world.rank], open_device("cpu", 1)
        group: Any = ThreadGroup(shard.part, stages[shard.stage])
        with torch.inference_mode():
            model = build(base, "float32", shard, group, device, lambda done, total: None, weights, adapters)
            assert model.adapters is not None
            for batch in batches:
                inputs = torch.tensor([batch.tokens])
                if not shard.has_embedding:
                    inputs = world.recv(torch.empty(1, len(batch.tokens), model.hidden_size), world.rank - plan.tensor)
                spans = [(span.sequence, span.seen, span.tokens) for span in batch.spans]
                with model.cache.batch(spans), model.adapters.chosen(batch, device):
                    out = model.forward(inputs, torch.tensor([batch.positions()]), torch.tensor(batch.logit_rows()))
                if not shard.has_head:
                    world.send(out, world.rank + plan.tensor)
            return out, model.adapters.bytes

    found = run_ranks(plan.world_size, rank)
    return found[plan.driver][0], [held for _, held in found]


def check(name: str, path: Path, targets: tuple[str, ...], splits: list[tuple[int, int]], **changes: Any) -> None:
    base = make(name, path / "base", **changes)
    one = make_adapter(base, path / "one", targets)
    pattern = {"rank_pattern": {targets[0]: 6}, "alpha_pattern": {f"layers.1.self_attn.{targets[0]}": 30}}
    two = make_adapter(base, path / "two", targets[:2], layers_to_transform=[1, 2], **pattern)
    models = [adapted(base, each) for each in (None, one, two)]
    expected = []
    for sequence, (number, count) in ROWS.items():
        with torch.inference_mode():
            expected.append(models[number](input_ids=torch.tensor([prompt(sequence, count + 1)])).logits[0, -1])
    adapters = tuple(find(Adapter(each.name, str(each))) for each in (one, two))
    for split in splits:
        logits, _ = run(base, adapters, split)
        difference = (logits - torch.stack(expected)).abs().max()
        assert difference < 1e-4, (name, split, difference)


@pytest.mark.parametrize(("name", "targets", "split"), [("llama", ATTENTION + DENSE, (2, 2)), ("phi3", FUSED, (2, 1))])
def test_sequences_of_several_adapters_share_a_batch(
    name: str, targets: tuple[str, ...], split: tuple[int, int], tmp_path: Path
) -> None:
    check(name, tmp_path, targets, [split])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama", ATTENTION + DENSE),
        ("qwen3", ATTENTION + DENSE),
        ("phi3", FUSED),
        ("qwen3_moe", ATTENTION),
        ("gemma2", ATTENTION + DENSE),
        ("deepseek_v3", ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")),
    ],
)
def test_every_family_and_split_computes_as_peft(name: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    check(name, tmp_path, targets, SPLITS)


def test_key_value_heads_held_by_several_ranks(tmp_path: Path) -> None:
    check("llama", tmp_path, ATTENTION, [(4, 1)], num_key_value_heads=2)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_over_a_packed_base_is_as_over_its_numbers(weights: str, tmp_path: Path) -> None:
    base = make("llama", tmp_path / "base", intermediate_size=128)
    one, two = (find(Adapter(each, str(make_adapter(base, tmp_path / each)))) for each in ("one", "two"))
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    shutil.copy(base / "config.json", numbers)
    with Checkpoint(base, weights) as checkpoint:
        save_file({key: checkpoint.read(key)[0].float() for key in checkpoint.tensors}, numbers / "model.safetensors")
    expected, _ = run(numbers, (one, two), (1, 1))
    for split in ((1, 1), (2, 1)):
        found, held = run(base, (one, two), split, weights)
        assert (found - expected).abs().max() < 1e-3 * expected.abs().max()
    files = sum(each.b.bytes + each.a.bytes for adapter in (one, two) for each in read_pairs(adapter))
    assert max(held) < files < sum(held), "matrices are cut as their layers are"


def test_rows_side_by_side_are_one_range() -> None:
    spans = tuple(Span(number, 0, count, True) for number, count in enumerate((2, 3, 1, 4)))
    assert ranges_of(Batch(spans, (0,) * 10, adapters=(1, 1, 2, 1))) == {
        1: [range(5), range(6, 10)],
        2: [range(5, 6)],
    }


def test_an_adapter_of_another_model_is_told_by_its_tensor(tmp_path: Path) -> None:
    base = make("llama", tmp_path / "base")
    wider = make("llama", tmp_path / "wider", intermediate_size=128)
    fused = make("phi3", tmp_path / "fused")
    moe = make("qwen3_moe", tmp_path / "moe")
    for directory, other, targets, told in (
        (base, wider, DENSE, r"layers\.0\.mlp\.\w+\.lora_A\.weight does not fit this model: .* for 128 features"),
        (base, fused, FUSED, r"layers\.0\.\S+lora_A\.weight does not fit this model: Llama\w+ has no such layer"),
        (base, base, ("lm_head",), r"lm_head\.base_layer\.weight is a weight of the base itself"),
        (moe, base, ("gate_proj",), r"layers\.0\.mlp\.gate_proj\.lora_A\.weight .*no such layer"),
    ):
        adapter = find(Adapter("strange", str(make_adapter(other, tmp_path / f"{other.name}-{targets[0]}", targets))))
        with pytest.raises(ModelError, match=told):
            run(directory, (adapter, adapter), (1, 1))

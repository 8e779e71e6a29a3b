"""LoRA adapters on ranks: each sequence of a batch as PEFT and transformers compute it alone, on every split."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import gguf_models
import pytest
import torch
from in_threads import on_plan
from safetensors.torch import save_file
from test_parity import plan_for
from tiny_adapters import ATTENTION, DENSE, adapted, make_adapter
from tiny_models import make

from ferrule.engine.adapters import counted, find, read_pairs
from ferrule.engine.devices import open_device
from ferrule.engine.options import Adapter, RankOptions
from ferrule.engine.rank.adapters.lora import ranges_of
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.source import describe, read_config
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.errors import ModelError
from ferrule.fabric import Group
from ferrule.plan.cost.memory import weight_bytes

FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
RUNNERS = (StepRunner, TorchRunner)
SPLITS = [(1, 1), (2, 1), (1, 2), (2, 2)]
ROWS = {3: (1, 6), 4: (0, 5), 5: (2, 7), 6: (1, 3)}
"""Number of each sequence -> its adapter and how many tokens it brings first."""


def prompt(sequence: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(sequence)
    return list(torch.randint(3, 131, (count,), generator=generator).tolist())


def run(
    runner: type[StepRunner] | type[TorchRunner],
    base: Path,
    adapters: tuple[Adapter, ...],
    split: tuple[int, int],
    weights: str | None = None,
    rows: Mapping[int, tuple[int, int]] = ROWS,
) -> tuple[torch.Tensor, list[int]]:
    """Logits of the last token of each sequence after two batches, and the bytes of weights on each rank."""
    plan = plan_for(base, *split)
    options = RankOptions(str(base), "float32", plan, 1, 128, 8, 64, (), weights=weights, adapters=adapters)
    numbers = tuple(number for number, _ in rows.values())
    first = tuple(Span(each, 0, count, True, count) for each, (_, count) in rows.items())
    then = tuple(Span(each, count, 1, True) for each, (_, count) in rows.items())
    whole = {each: prompt(each, count + 1) for each, (_, count) in rows.items()}
    before = tuple(token for tokens in whole.values() for token in tokens[:-1])

    def body(world: Group, stage: Group) -> tuple[torch.Tensor | None, int]:
        made = runner(options, world, stage, open_device("cpu", 1))
        made.run(Batch(first, before, adapters=numbers))
        logits = made.run(Batch(then, tuple(tokens[-1] for tokens in whole.values()), adapters=numbers))
        return logits, made.weight_bytes

    found = on_plan(plan, body)
    logits = found[plan.driver][0]
    assert logits is not None
    return logits, [held for _, held in found]


def check(
    name: str,
    path: Path,
    targets: tuple[str, ...],
    splits: list[tuple[int, int]],
    runners: tuple[type[StepRunner] | type[TorchRunner], ...] = RUNNERS,
    **changes: Any,
) -> None:
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
    for runner, split in product(runners, splits):
        logits, _ = run(runner, base, adapters, split)
        difference = (logits - torch.stack(expected)).abs().max()
        assert difference < 1e-4, (name, runner, split, difference)


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


@pytest.mark.slow
def test_key_value_heads_held_by_several_ranks(tmp_path: Path) -> None:
    check("llama", tmp_path, ATTENTION, [(4, 1)], num_key_value_heads=2)


def test_a_sequence_has_the_same_bits_alone(tmp_path: Path) -> None:
    base = make("llama", tmp_path / "base")
    adapters = tuple(find(Adapter(each, str(make_adapter(base, tmp_path / each)))) for each in ("one", "two"))
    together, _ = run(StepRunner, base, adapters, (2, 1))
    for place, (sequence, row) in enumerate(ROWS.items()):
        alone, _ = run(StepRunner, base, adapters, (2, 1), rows={sequence: row})
        assert torch.equal(alone[0], together[place])


@pytest.mark.parametrize("weights", [pytest.param("int8", marks=pytest.mark.slow), "int4"])
def test_over_a_packed_base_is_as_over_its_numbers(weights: str, tmp_path: Path) -> None:
    base = make("llama", tmp_path / "base", intermediate_size=128)
    one, two = (find(Adapter(each, str(make_adapter(base, tmp_path / each)))) for each in ("one", "two"))
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    shutil.copy(base / "config.json", numbers)
    with Checkpoint(base, weights) as checkpoint:
        save_file({key: checkpoint.read(key)[0].float() for key in checkpoint.tensors}, numbers / "model.safetensors")
    expected, _ = run(TorchRunner, numbers, (one, two), (1, 1))
    for runner, split in product(RUNNERS, ((1, 1), (2, 1))):
        found, _ = run(runner, base, (one, two), split, weights)
        assert (found - expected).abs().max() < 1e-3 * expected.abs().max(), (runner, split)


@pytest.mark.slow
def test_over_a_gguf_file_is_as_over_its_numbers(tmp_path: Path) -> None:
    """Whose queries and keys are stored in another order."""
    file, model = gguf_models.write(
        "llama", tmp_path, "Q8_0", intermediate_size=128, attention_bias=False, mlp_bias=False
    )
    model.save_pretrained(tmp_path / "numbers")
    adapters = tuple(
        find(Adapter(each, str(make_adapter(tmp_path / "numbers", tmp_path / each)))) for each in ("one", "two")
    )
    expected, _ = run(TorchRunner, tmp_path / "numbers", adapters, (1, 1))
    for runner in RUNNERS:
        found, _ = run(runner, file, adapters, (2, 1))
        assert (found - expected).abs().max() < 1e-3 * expected.abs().max(), runner


def test_matrices_are_cut_as_their_layers_are(tmp_path: Path) -> None:
    base = make("llama", tmp_path / "base")
    adapter = find(Adapter("one", str(make_adapter(base, tmp_path / "one"))))
    files = sum(each.b.bytes + each.a.bytes for each in read_pairs(adapter))
    plain = run(TorchRunner, base, (), (2, 1))[1]
    held = [
        some - without
        for some, without in zip(run(TorchRunner, base, (adapter, adapter), (2, 1))[1], plain, strict=True)
    ]
    assert max(held) < 2 * files < sum(held)
    spec = describe(base, read_config(base), None, "float32")
    plans = [weight_bytes(each.in_engine, plan_for(base, 2, 1)) for each in (spec, counted(spec, (adapter, adapter)))]
    assert [some - without for without, some in zip(*plans, strict=True)] == held


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
        (
            base,
            wider,
            DENSE,
            r"'strange' does not fit this model: \S+\.0\.mlp\.\w+\.lora_\w\.weight is for 128 features, .* has 96",
        ),
        (base, fused, FUSED, r"\S+\.0\.\S+\.lora_A\.weight is for a layer that LlamaForCausalLM does not have"),
        (base, base, ("lm_head",), r"lm_head\.base_layer\.weight is a weight of the base itself"),
        (moe, base, ("gate_proj",), r"layers\.0\.mlp\.gate_proj\.lora_A\.weight is for a layer that"),
    ):
        adapter = find(Adapter("strange", str(make_adapter(other, tmp_path / f"{other.name}-{targets[0]}", targets))))
        with pytest.raises(ModelError, match=told):
            run(StepRunner, directory, (adapter, adapter), (1, 1))

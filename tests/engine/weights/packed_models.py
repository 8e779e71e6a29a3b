"""Checkpoints of packed weights, and what holds for every format: cuts, logits, bytes, and what a rank needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_parity import PIECES, TOKENS, forward, plan_for, run_split
from test_shard_needs import only_needed
from thread_group import ThreadGroup
from tiny_models import make
from torch import Tensor
from transformers import AutoModelForCausalLM

from ferrule.engine.rank.model import ShardedModel
from ferrule.engine.source import describe, read_config
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.slicing import Slicing
from ferrule.model import read_model

Quantised = tuple[dict[str, Tensor], Tensor]
"""Tensors stored of a weight, by names relative to its module, and its numbers as the format's own library has them."""


def write(directory: Path, tensors: Mapping[str, Tensor], settings: object, field: str = "quantization_config") -> Path:
    """A checkpoint of ``tensors`` alone, and what config.json says of their format."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: each.contiguous() for name, each in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({field: settings}))
    return directory


def read(directory: Path, key: str = "m.weight") -> Tensor:
    with Checkpoint(directory) as checkpoint:
        return checkpoint.read(key)[0]


def module(parts: Mapping[str, Tensor], name: str = "m") -> dict[str, Tensor]:
    """``parts`` under the names of a module."""
    return {f"{name}.{leaf}": each for leaf, each in parts.items()}


@st.composite
def ranges(draw: st.DrawFn, length: int, border: int) -> tuple[tuple[int, int], ...]:
    """One to three ranges of ``length``, in order, at multiples of ``border`` or at the end."""
    places = sorted({*range(0, length, border), length})
    ends = sorted(draw(st.sets(st.sampled_from(places), min_size=2, max_size=6)))
    return tuple(zip(ends[::2], ends[1::2], strict=False))


def check_cut(directory: Path, data: st.DataObject, key: str = "m.weight", weights: str | None = None) -> None:
    """A cut of weight ``key`` anywhere that its format allows is that part of the whole."""
    with Checkpoint(directory, weights) as checkpoint:
        weight = checkpoint.tensors[key]
        whole = checkpoint.read(key)[0]
        dim = data.draw(st.integers(0, len(weight.shape) - 1))
        length = weight.shape[dim]
        spans = data.draw(ranges(length, weight.format.border(weight, dim)))
        found = checkpoint.read(key, Slicing(dim, length, spans))
    assert [tuple(part.shape) for part in found] == [
        (*whole.shape[:dim], stop - start, *whole.shape[dim + 1 :]) for start, stop in spans
    ]
    for part, (start, stop) in zip(found, spans, strict=True):
        assert torch.equal(part, whole.narrow(dim, start, stop - start))


def packed_model(
    directory: Path,
    settings: Mapping[str, Any],
    quantise: Callable[[str, Tensor], Quantised | None],
    field: str = "quantization_config",
    family: str = "llama",
    **changes: Any,
) -> Path:
    """A tiny model of ``family`` with what ``quantise`` (of a module's name and weight) makes of its weights; None: it
    stays. Its numbers lie beside it, in ``NAME-plain``."""
    wider = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    make(family, directory, torch.bfloat16, **(wider | changes))  # two ranks cut it on borders of groups
    tensors = load_file(directory / "model.safetensors")
    plain = {key: each.float() for key, each in tensors.items()}
    for key in [key for key, each in tensors.items() if each.dim() == 2]:
        name = key.removesuffix(".weight")
        made = quantise(name, tensors[key])
        if made is not None:
            del tensors[key]
            tensors |= module(made[0], name)
            plain[key] = made[1].float()
    return replace(directory, tensors, plain, settings, field)


def replace(
    directory: Path, tensors: Mapping[str, Tensor], plain: Mapping[str, Tensor], settings: object, field: str
) -> Path:
    """Write ``tensors`` into the model of ``directory``, and ``plain`` into one beside it."""
    config = json.loads((directory / "config.json").read_text())
    reference = directory.with_name(f"{directory.name}-plain")
    reference.mkdir()
    for each, held, told in ((reference, plain, config), (directory, tensors, {**config, field: settings})):
        (each / "config.json").write_text(json.dumps(told))
        save_file({name: tensor.contiguous() for name, tensor in held.items()}, each / "model.safetensors")
    return directory


def in_layers(quantise: Callable[[Tensor], Quantised]) -> Callable[[str, Tensor], Quantised | None]:
    """Quantise what most quantisers do: the products of the layers, and not embedding or head."""
    return lambda name, weight: quantise(weight) if ".layers." in name else None


def check_model(directory: Path) -> None:
    """At one and two ranks the logits are transformers' own of the plain numbers; the planner's bytes are the files';
    and a host without the files gets what its rank reads."""
    check_logits(directory, 1)
    check_logits(directory, 2)
    check_bytes(directory)
    check_needed(directory)


def check_logits(directory: Path, tensor: int, pipeline: int = 1) -> None:
    plan = plan_for(directory, tensor, pipeline)
    ids = torch.randint(3, 131, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    plain = directory.with_name(f"{directory.name}-plain")
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()(ids).logits[0]

    def body(model: ShardedModel, world: ThreadGroup) -> Tensor | None:
        pieces = [forward(model, world, plan, ids[:, a:b], a) for a, b in PIECES]
        return None if pieces[0] is None else torch.cat([piece for piece in pieces if piece is not None])

    logits = run_split(directory, plan, body)[plan.driver]
    assert (logits - expected).abs().max() < 1e-4


def check_bytes(directory: Path, slack: int = 0) -> None:
    """Check that the stored tensors take the bytes computed from config.json alone. ``slack``: bytes by which numbers
    that are written in decimals may differ, in all."""
    told = read_model(str(directory / "config.json"))
    for spec in (describe(directory, read_config(directory)), read_model(str(directory))):
        assert spec.parameters == told.parameters
        if not slack:
            assert (spec.decoder, spec.embedding, spec.head) == (told.decoder, told.embedding, told.head)
        assert abs(spec.bytes - told.bytes) <= slack


def check_needed(directory: Path) -> None:
    plan = plan_for(directory, 2, 1)
    for rank in range(2):
        copy = only_needed(directory, plan, rank, directory.with_name(f"{directory.name}-{rank}"))

        def body(model: ShardedModel, world: ThreadGroup) -> dict[str, Tensor]:
            return dict(model.model.state_dict())

        whole, part = (run_split(each, plan, body)[rank] for each in (directory, copy))
        assert [name for name in whole if not torch.equal(whole[name], part[name])] == []

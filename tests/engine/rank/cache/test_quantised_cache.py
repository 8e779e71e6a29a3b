"""Quantised keys and values: their codes, and that every runner and split keeps the same ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_threads import on_plan, thread_groups
from plugged import emulated
from prefix_ranks import CONTEXT, add, answers, prompt
from test_parity import plan_for
from tiny_models import make

from ferrule.bench.kv_cache import reference_text
from ferrule.engine.devices import Device, open_device
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.cache.codes import Codes
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.stream.room import token_bytes
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.selftest.compare import error
from ferrule.engine.source import describe, read_config
from ferrule.engine.tokenizer.model import ModelTokenizer
from ferrule.errors import ConfigError
from ferrule.fabric import Group
from ferrule.model import demo_path, kept_in, read_model
from ferrule.plan import BUILT_IN_ENGINE, make_plan

PIECES = ((0, 37), (37, 38), (38, 39), (39, 58), (58, 59))
KINDS = ("int8", "int4")


def cpu() -> Device:
    return open_device("cpu", 1)


def rows(
    directory: Path, kv_cache: str, runner: Any = StepRunner, split: tuple[int, int] = (1, 1)
) -> tuple[torch.Tensor, int]:
    """Logits of the last token of each piece, and the bytes of a token over all ranks."""
    plan = plan_for(directory, *split)
    options = RankOptions(str(directory), "float32", plan, 1, 128, 4, 64, (), kv_cache=kv_cache)
    ids = prompt(1, PIECES[-1][1])

    def body(world: Group, stage: Group) -> tuple[torch.Tensor | None, int]:
        one = runner(options, world, stage, cpu())
        found = []
        if isinstance(one, StepRunner):
            counted = token_bytes(one.description.layers, one.torch_dtype, Codes.of(kv_cache))
            assert counted == one.cache_bytes_per_token(7)
        for first, last in PIECES:
            logits = one.run(Batch((Span(7, first, last - first, True),), tuple(ids[first:last])))
            found += [] if logits is None else [logits.clone()]
        return torch.cat(found) if found else None, one.cache_bytes_per_token(7)

    results = on_plan(plan, body)
    (logits,) = [each for each, _ in results if each is not None]
    return logits, sum(size for _, size in results)


@pytest.mark.parametrize(("bits", "step"), [(8, 1 / 256), (4, 1 / 16)])
def test_codes_are_near_to_the_numbers(bits: int, step: float) -> None:
    drawn = torch.randn(3, 5, 70, generator=torch.Generator().manual_seed(1))
    numbers = drawn * torch.logspace(-2, 4, 15).view(3, 5, 1)
    numbers[0, 0] = 0
    codes = Codes(bits)
    stored = codes.pack(numbers)
    assert stored.shape == (3, 5, 3 * (4 * bits + 2))
    assert stored.dtype == torch.uint8
    back = codes.unpack(stored, 70, torch.float32)
    for first in range(0, 70, 32):
        group, found = numbers[..., first : first + 32], back[..., first : first + 32]
        most = group.abs().amax(-1, keepdim=True)
        assert ((found - group).abs() <= most * (2 * step + 1e-3)).all()  # the last step has no code above zero
        assert (found.abs().amax(-1, keepdim=True) >= most * (1 - 1e-3)).all()
    assert not back[0, 0].any()


@pytest.mark.parametrize(
    ("name", "changes", "kv_cache"),
    [
        ("llama", {"head_dim": 48}, "int8"),
        ("llama", {"head_dim": 48}, "int4"),
        ("deepseek_v3", {}, "int8"),
        pytest.param("gpt_oss", {"head_dim": 64}, "int4", marks=pytest.mark.slow),
    ],
)
def test_runners_and_splits_keep_the_same(name: str, changes: dict[str, Any], kv_cache: str, tmp_path: Path) -> None:
    """As far as rounding leaves a number on the same side of the border of two codes; and not what plain numbers give.
    What a rank holds is what the planner counts."""
    directory = make(name, tmp_path, **changes)
    plain, plain_size = rows(directory, "auto")
    found, size = rows(directory, kv_cache)
    spread, most = plain.std(), {"int8": 0.01, "int4": 0.02}[kv_cache]
    off = error(found.numpy(), plain.numpy())
    assert {"int8": 1e-4, "int4": 2e-3}[kv_cache] < off < {"int8": 0.02, "int4": 0.3}[kv_cache]
    others = {"torch": (TorchRunner, (1, 1)), "tensor": (StepRunner, (2, 1)), "pipeline": (StepRunner, (1, 2))}
    for how, (runner, split) in others.items():
        logits, bytes_there = rows(directory, kv_cache, runner, split)
        assert (logits - found).abs().max() / spread < most, how
        if how == "pipeline":
            assert bytes_there == size
    spec = kept_in(describe(directory, read_config(directory)), kv_cache)
    assert spec.cache_bytes(1, BUILT_IN_ENGINE.cache_of(spec)) == size
    assert size < plain_size


def test_the_embedded_model_hardly_says_anything_else() -> None:
    """Over 1,024 tokens that it was trained on: the divergence of what it expects, and perplexity. Without, its numbers
    rounded to bfloat16 are 2e-5 off."""
    tokenizer = ModelTokenizer(demo_path())
    ids = torch.tensor(tokenizer.encode(reference_text()[:20_000])[:1024]).view(2, 512)
    assert ids.shape == (2, 512)
    batch = Batch(tuple(Span(n, 0, 512, True, scored=True) for n in (1, 2)), tuple(ids.flatten().tolist()))
    plan = make_plan(read_model("demo"))
    expected: dict[str, torch.Tensor] = {}
    for kv_cache in ("auto", *KINDS):
        options = RankOptions(str(demo_path()), "float32", plan, 1, 1024, 4, 1024, (), kv_cache=kv_cache)
        (world,) = thread_groups(1)
        logits = StepRunner(options, world, world, cpu()).run(batch)
        world.close()
        assert logits is not None
        expected[kv_cache] = logits.log_softmax(-1).view(2, 512, -1)
    plain = expected["auto"]

    def perplexity(of: torch.Tensor) -> float:
        return float((-of[:, :-1].gather(-1, ids[:, 1:, None]).mean()).exp())

    for kv_cache, divergence, worse in (("int8", 3e-4, 1.003), ("int4", 0.05, 1.03)):
        found = expected[kv_cache]
        apart = float((plain.exp() * (plain - found)).sum(-1).mean())
        assert 0 < apart < divergence, kv_cache
        assert perplexity(found) < worse * perplexity(plain), kv_cache


BEGINNING = prompt(1, 2 * BLOCK + 5)


@pytest.mark.parametrize(
    ("runner", "kv_cache"), [(StepRunner, "int4"), pytest.param(TorchRunner, "int8", marks=pytest.mark.slow)]
)
def test_blocks_of_codes_are_shared_preempted_and_read_from_disk(
    runner: Any, kv_cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are those without: also the tokens of one batch see each other by their codes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = make("llama", tmp_path / "model", head_dim=48)
    steps: list[Any] = [
        [add(number, (*BEGINNING[: 20 * number], *prompt(number, 40)), max_tokens=30) for number in range(1, 5)],
        [add(11, BEGINNING), add(12, prompt(12, 150), max_tokens=40)],
        [add(21, (*BEGINNING, 9))],
    ]
    given: dict[str, Any] = {"runner": runner, "kv_cache": kv_cache, "cache_tokens": CONTEXT, "identity": "llama"}
    without = answers(directory, *steps, prefix_cache=False, **given)
    first = answers(directory, *steps, prefix_disk=1 << 24, **given)
    assert first.tokens == without.tokens
    assert sum(first.cached.values()) > 0
    again = answers(directory, [add(21, (*BEGINNING, 9))], prefix_disk=1 << 24, **given)
    assert again.cached == {21: 2 * BLOCK}
    assert again.tokens[21] == without.tokens[21]
    other = answers(directory, [add(21, (*BEGINNING, 9))], prefix_disk=1 << 24, **given | {"kv_cache": "auto"})
    assert other.cached == {21: 0}, "files are of one kind of cache"


@pytest.mark.slow
def test_pages_of_an_accelerator_have_codes(tmp_path: Path) -> None:
    """Steps that are captured give what those on processors give, and pages are shared."""
    directory = make("llama", tmp_path, num_hidden_layers=1)
    steps: list[Any] = [[add(1, BEGINNING[:70], max_tokens=3)], [add(2, BEGINNING[:68], max_tokens=2)]]
    found = answers(directory, *steps, runner=TorchRunner, device=emulated, kv_cache="int8")
    assert not found.driver.prefixes.copies
    assert found.cached == {1: 0, 2: BLOCK}
    assert found.tokens == answers(directory, *steps, runner=TorchRunner, kv_cache="int8").tokens


def test_what_cannot_be_quantised_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--kv-cache 'int2' is not one of auto, int8, int4"):
        EngineOptions("demo", kv_cache="int2")
    for name, kept in (("lfm2", "recurrent states"), ("deepseek_v4", "entries of compressed attention")):
        directory = make(name, tmp_path / name)
        spec = describe(directory, read_config(directory))
        with pytest.raises(ConfigError, match=f"keeps {kept}"):
            kept_in(replace(spec, decoder=spec.decoder[:1]), "int8")
    directory = make("deepseek_v3", tmp_path / "latents")
    with pytest.raises(ConfigError, match=r"keeps latents, .* --kv-cache int8"):
        kept_in(describe(directory, read_config(directory)), "int4")

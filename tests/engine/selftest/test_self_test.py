"""A split model that computes something else than the model in one piece does not become ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from in_threads import on_all, thread_groups
from test_parity import plan_for
from tiny_models import REQUIRED, long_rope, make
from transformers import AutoModelForCausalLM

from ferrule.engine.devices import open_device
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.probe import output_of
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.selftest.check import Expected, check
from ferrule.engine.selftest.compare import MOST, error, tolerance
from ferrule.engine.selftest.fingerprint import Case, Fingerprint, compute, recall
from ferrule.engine.selftest.prompts import long_parts, long_rows, long_tokens, prefixes, token_ids
from ferrule.engine.selftest.reference import Reference
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.errors import EngineError
from ferrule.plan import Plan

CONTEXT = 300
VOCABULARY = 131


class PartOfStage:
    """A group of a stage, of which a test can take the collectives away."""

    def __init__(self, group: Any, part: int) -> None:
        self.group, self.rank, self.size = group, part, group.size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


def run(
    directory: Path,
    plan: Plan,
    dtype: str = "float32",
    parts: Callable[[int], int] = lambda part: part,
    breaking: Callable[[TorchRunner], object] = lambda runner: None,
) -> None:
    """The self-test on the ranks of ``plan``; each holds the part that ``parts`` says instead of its own."""
    options = RankOptions(str(directory), dtype, plan, 1, CONTEXT, 8, 64, (), directory.name)
    case = Case(options.identity, VOCABULARY, CONTEXT, plan.shards[0].last_layer)
    reference = recall(case) or compute(directory, case, lambda done, total: None)
    worlds = thread_groups(plan.world_size)
    stages = [thread_groups(plan.tensor) for _ in range(plan.pipeline)]
    runners = []
    for world, shard in zip(worlds, plan.shards, strict=True):
        stage = cast(Any, PartOfStage(stages[shard.stage][shard.part], parts(shard.part)))
        runners.append(TorchRunner(options, world, stage, open_device("cpu", 1)))
        breaking(runners[-1])

    def body(world: Any) -> EngineError | None:
        owned = Expected(plan.world_size - 1, reference if world.rank == plan.world_size - 1 else None)
        try:
            check(runners[world.rank], owned, VOCABULARY, CONTEXT, lambda progress: None)
        except EngineError as error:  # not raised here: the first to end would end the others' last message
            return error
        return None

    try:
        verdicts = on_all(worlds, body)
        assert len(set(map(str, verdicts))) == 1, "every rank hears the same"
        if verdicts[0] is not None:
            raise verdicts[0]
    finally:
        for group in [*worlds, *(group for stage in stages for group in stage)]:
            group.abort()
            group.close()


@pytest.fixture(autouse=True, scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of our own, and a thread per rank, which is one already."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("models") / "llama", max_position_embeddings=CONTEXT)


def without_all_reduce(runner: TorchRunner) -> None:
    runner.stage.all_reduce = lambda x: x  # type: ignore[method-assign, assignment, misc]


def forgetful_beyond(tokens: int) -> Callable[[TorchRunner], None]:
    """Positions start again, as with a rotary table that is too short."""

    def breaking(runner: TorchRunner) -> None:
        forward = runner.model.forward
        runner.model.forward = lambda x, positions, rows: forward(x, positions % tokens, rows)  # type: ignore[method-assign]

    return breaking


def test_a_model_split_as_it_should_be_passes(llama: Path) -> None:
    run(llama, plan_for(llama, 2, 2))


def test_a_swapped_part_is_caught(llama: Path) -> None:
    with pytest.raises(EngineError, match=r"self-test: with --tp 2 --pp 1 .* off .*--no-self-test"):
        run(llama, plan_for(llama, 2, 1), parts=lambda part: 1 - part)


def test_a_missing_sum_is_caught(llama: Path) -> None:
    with pytest.raises(EngineError, match=r"--tp 2 --pp 1 the answers of short prompts are"):
        run(llama, plan_for(llama, 2, 1), breaking=without_all_reduce)


def test_what_goes_wrong_only_in_long_prompts_is_caught(llama: Path) -> None:
    with pytest.raises(EngineError, match=r"the answers of tokens \d+ to \d+ of a long prompt are"):
        run(llama, plan_for(llama, 1, 2), breaking=forgetful_beyond(200))


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUIRED)
def test_every_architecture_passes_and_a_swapped_part_does_not(name: str, tmp_path: Path) -> None:
    longer = {} if name == "gpt_oss" else {"max_position_embeddings": CONTEXT}
    directory = make(name, tmp_path / name, dtype=torch.bfloat16, **longer)
    run(directory, plan_for(directory, 2, 1), "bfloat16")
    with pytest.raises(EngineError, match="self-test"):
        run(directory, plan_for(directory, 2, 1), "bfloat16", parts=lambda part: 1 - part)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama4_text", "deepseek_v32", "glm_moe_dsa", "gemma3n_text", "phi3", "deepseek_v4"])
def test_special_attention_passes(name: str, tmp_path: Path) -> None:
    changes = long_rope(40) if name == "phi3" else {}
    directory = make(name, tmp_path / f"special-{name}", max_position_embeddings=CONTEXT, **changes)
    run(directory, plan_for(directory, 2, 1))


def test_the_reference_is_what_transformers_computes_and_holds_one_layer(llama: Path) -> None:
    ids, rows = token_ids(30, VOCABULARY), [3, 29]
    held = []
    with Checkpoint(llama) as checkpoint:
        reference = Reference(llama, checkpoint, lambda done, total: held.append(loaded(reference.layers)))
        found = reference.logits(ids, rows)
        first = reference.hidden(ids, rows, 1)
    whole = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = whole(torch.tensor([ids]), output_hidden_states=True)
    assert np.abs(found - expected.logits[0, rows].numpy()).max() < 1e-5
    assert np.abs(first - expected.hidden_states[1][0, rows].numpy()).max() < 1e-5
    assert held == [0] * 5  # four layers for the logits and one for the hidden states, each given back


def loaded(layers: list[torch.nn.Module]) -> int:
    return sum(not parameter.is_meta for layer in layers for parameter in layer.parameters())


def test_a_layer_that_stops_gives_what_it_made() -> None:
    layer = torch.nn.Identity()
    hidden = torch.arange(12.0).reshape(1, 4, 3)
    assert output_of(layer, lambda: layer(hidden)).tolist() == hidden[0].tolist()


def test_a_fingerprint_is_kept_and_a_damaged_one_made_again(llama: Path) -> None:
    case = Case("0123", VOCABULARY, CONTEXT, 4)
    assert recall(case) is None
    made = compute(llama, case, lambda done, total: None)
    kept = recall(case)
    assert kept is not None
    assert np.array_equal(kept.short, made.short)
    assert kept.depth == made.depth == 4
    case.file().write_bytes(case.file().read_bytes()[:100])
    assert recall(case) is None
    with pytest.raises(ValueError, match=r"\w"):
        Fingerprint.from_bytes(b"")


def test_prompts_fit_the_context() -> None:
    assert max(prefixes(20)) == 17
    assert long_tokens(200) == 0
    assert long_tokens(5000) > 4096
    assert set(token_ids(2000, 50)) == set(range(50))
    places = long_rows(long_tokens(5000))
    assert places[-1] == long_tokens(5000) - 1
    beyond = long_parts(places)[-1]
    assert beyond.name == "of a long prompt beyond 4096 tokens"
    assert [places[row] for row in beyond.rows] == [place for place in places if place >= 4096]


def test_errors_are_relative_and_what_is_no_number_is_infinitely_wrong() -> None:
    rows = np.random.default_rng(0).standard_normal((9, 50)).astype(np.float32)
    assert error(rows * 1000, rows * 1000) == 0
    assert error(rows * 1.01, rows) == pytest.approx(0.01, rel=0.1)
    assert error(np.full_like(rows, np.nan), rows) == float("inf")
    assert tolerance("float32", 80) < tolerance("float16", 80) < tolerance("bfloat16", 80) <= MOST
    assert tolerance("bfloat16", 4) == pytest.approx(10 / 256 * 2)
    assert tolerance("bfloat16", 4, 8) == tolerance("bfloat16", 4) < tolerance("float32", 4, 4) == MOST

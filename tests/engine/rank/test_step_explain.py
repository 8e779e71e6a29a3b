"""Output of `ferrule plan --explain-step`: the program that ranks run, and what the planner counts with."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_parity import plan_for
from test_step import FAMILIES, runner_of
from tiny_models import CONFIGS, COUNTED, make

from ferrule.engine.rank.step.explain import StepText, explain_step
from ferrule.engine.source import config_of, read_config
from ferrule.model import Hub, read_configuration, read_model
from ferrule.model.families.family import PROGRAMS
from ferrule.model.families.program import OUTER_OPERATIONS
from ferrule.plan import make_plan
from ferrule.plan.cost.experts import Sent


def step(directory: Path, tensor: int = 1, pipeline: int = 1, rank: int = 0) -> StepText:
    return explain_step(read_config(directory), plan_for(directory, tensor, pipeline).shards[rank])


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_program_that_runs(name: str, tmp_path: Path) -> None:
    directory = make(name, tmp_path)
    shown = step(directory)
    runner, world = runner_of(directory)
    world.close()
    names = [type(each).__name__.lower().replace("headproduct", "heads") for each in runner.description.operations]
    flat: list[list[str]] = [[]] * 4
    for part in shown.parts:
        for layer in part.layers:
            flat[layer] = [line.operation for line in part.lines]
    outside = [[line.operation for line in part.lines] for part in shown.parts if not part.layers]
    assert [*outside[0], *(each for layer in flat for each in layer), *outside[1]] == names


@pytest.mark.parametrize("name", sorted(CONFIGS | COUNTED))
def test_the_planner_knows_which_families_have_programs_and_counts_their_operations(name: str, tmp_path: Path) -> None:
    directory = make(name, tmp_path)
    layers = read_model(str(directory)).decoder
    shown = step(directory)
    assert (shown.unfit is None) == (name in PROGRAMS), shown.unfit
    if shown.unfit is not None:
        assert {layer.program_operations for layer in layers} == {None}
        return
    scaled = any(line.operation == "scale" for part in shown.parts for line in part.lines)
    counted = sum(layer.program_operations or 0 for layer in layers)
    assert shown.operations - scaled == counted + OUTER_OPERATIONS


def test_messages_of_tokens_that_are_sent_are_counted(tmp_path: Path) -> None:
    """As many for each layer as the planner counts; beside them the sum of embeddings, all rows joined, and logits."""
    directory = make("qwen3_moe", tmp_path)  # whose second layer is dense
    spec = read_model(str(directory))
    cut = make_plan(spec, tensor=2, experts=True, exchange=True)
    shown = explain_step(read_config(directory), cut.shards[1])
    sent = Sent(2, spec.hidden_size, 4, 8)
    layers = [sent.layer(layer.experts, 1.0, alone=False) for layer in spec.decoder]
    first_is_not_gathered = 1
    assert shown.collectives == sum(map(len, layers)) - first_is_not_gathered + 3
    by_layer = {layer: [line.operation for line in part.lines] for part in shown.parts for layer in part.layers}
    assert by_layer[2].count("scatter") == by_layer[2].count("gather") == 1
    assert by_layer[1].count("scatter") == by_layer[1].count("gather") == 2
    (lines,) = [part.lines for part in shown.parts if part.layers == (2, 3)]
    (experts,) = [line for line in lines if line.collectives == 3]
    assert experts.what.endswith("tokens are sent to their experts' ranks, and results back")


def test_weights_and_collectives_of_a_token_are_counted(tmp_path: Path) -> None:
    directory = make("qwen3", tmp_path)
    alone, half = step(directory), step(directory, 2, 1, rank=1)
    hidden, inner, heads, width, vocabulary = 64, 96, 8 + 4 + 4, 8, 131
    layer = hidden * (heads + 8) * width + 3 * hidden * inner + 2 * hidden + 2 * width
    assert alone.numbers == 4 * layer + hidden + hidden + vocabulary * hidden  # norms, a row of the embedding, the head
    assert (alone.collectives, half.collectives) == (0, 4 * 2 + 2)
    assert half.numbers < 0.6 * alone.numbers


def test_layers_that_do_the_same_are_told_together(tmp_path: Path) -> None:
    directory = make("gemma2", tmp_path)
    layers = [part.layers for part in step(directory).parts if part.layers]
    assert layers == [(0, 2), (1, 3)]
    first, last = step(directory, 1, 2, rank=0), step(directory, 1, 2, rank=1)
    assert [part.layers for part in (*first.parts, *last.parts)] == [(), (0,), (1,), (2,), (3,), ()]
    assert last.parts[-1].lines[-1].operation == "scale"


def test_families_without_programs_say_why(tmp_path: Path) -> None:
    shown = step(make("olmo2", tmp_path))
    assert (shown.parts, shown.operations) == ((), 0)
    assert shown.unfit == "Olmo2DecoderLayer has no step program"


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2", "gpt-oss-120b", "llama-3.1-8b"])
def test_models_that_are_not_here_are_told_from_their_configuration(name: str) -> None:
    fields = read_configuration(name)
    assert isinstance(fields, dict)
    shown = explain_step(config_of(fields, name), make_plan(read_model(name)).shards[0])
    assert shown.unfit is None
    spec = read_model(name)
    assert shown.operations == sum(layer.program_operations or 0 for layer in spec.decoder) + OUTER_OPERATIONS
    read = sum(layer.active_parameters for layer in spec.decoder) + spec.head.parameters + spec.final.parameters
    assert abs(shown.numbers - read) < 0.01 * read


def test_a_configuration_is_found_where_the_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = make("qwen3", tmp_path / "llama-3.1-8b")  # a directory goes before a known model of its name
    assert read_configuration("llama-3.1-8b") == Path("llama-3.1-8b")
    told = read_configuration(str(here / "config.json"))
    assert isinstance(told, dict)
    assert explain_step(config_of(told, "it"), make_plan(read_model(str(here))).shards[0]).unfit is None
    place = tmp_path / "hub" / "models--owner--name"
    revision = "0" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(revision)
    downloaded = make("qwen3", place / "snapshots" / revision)
    hub = Hub("http://127.0.0.1:9", downloads=tmp_path / "hub")
    assert read_configuration("owner/name", hub=hub) == downloaded

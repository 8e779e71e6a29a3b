"""Prompts that other ranks compute: answers are those of ranks that compute both, whatever becomes of the others."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from apart_ranks import answers_apart
from hypothesis import given, settings
from hypothesis import strategies as st
from prefix_ranks import BEGINNING, Requests, add, answers, prompt, requests, turns_of
from test_any_schedule import BY_MODULES, FAMILIES, LAYOUTS, laid_out
from tiny_models import make

from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.driver import handover
from ferrule.engine.rank.handover.end import HandOverEnd
from ferrule.engine.source import describe, read_config
from ferrule.model import ModelSpec
from ferrule.plan import make_plan

LONG = prompt(7, 3 * BLOCK + 9)
TURNS = (
    [add(1, LONG), add(2, prompt(8, 40)), add(3, (*BEGINNING, *prompt(9, 70)), max_tokens=20)],
    [add(4, (*LONG[: 2 * BLOCK], *prompt(10, 2 * BLOCK)))],
)
"""The second request is too short to be handed over, of the last one only a block is not known."""


def spec_of(directory: Path) -> ModelSpec:
    return describe(directory, read_config(directory))


@pytest.mark.parametrize(
    ("family", "prompts", "answering", "options"),
    [
        ("llama", "even", "one", {}),
        ("qwen3_moe", "one", "even", {}),
        pytest.param("gpt_oss", "even", "stages", {"batch_tokens": 64}, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", "stages", "even", {}, marks=pytest.mark.slow),
        pytest.param("qwen3", "uneven", "both", {"kv_cache": "int8"}, marks=pytest.mark.slow),
        pytest.param("qwen3_moe", "experts alone", "uneven", {"batch_tokens": 200}, marks=pytest.mark.slow),
    ],
)
def test_any_two_splits_give_the_answers_of_one(
    tmp_path: Path, family: str, prompts: str, answering: str, options: dict[str, object]
) -> None:
    directory = make(family, tmp_path)
    spec = spec_of(directory)
    plans = [make_plan(spec) if name == "one" else laid_out(name, spec) for name in (prompts, answering)]
    expected = answers(directory, *TURNS, prefix_cache=False, **options)
    found = answers_apart(directory, plans[0], plans[1], *TURNS, **options)
    assert found.tokens == expected.tokens
    assert {(each.id, each.first, each.last) for each in found.wanted} == {(1, 0, 3), (3, 0, 3)}
    assert all(each.blocks == each.wanted for each in found.received)
    assert found.cached == {1: 0, 2: 0, 3: 0, 4: 2 * BLOCK}


@pytest.mark.parametrize(
    "examples", [pytest.param(6, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.soak)]
)
def test_any_schedule_on_any_two_splits_gives_the_same(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "LEAST", 1)
    families = [family for family in FAMILIES if family not in BY_MODULES]
    layouts = [each for each in LAYOUTS if each != "pages"]  # whose blocks are spread over ranks
    whole = [each for each in layouts if not each.startswith("sent")]  # each layer leaves all rows on every rank
    rooms, pieces = st.sampled_from([384, 1024]), st.sampled_from([16, 64])

    @settings(max_examples=examples, deadline=None)
    @given(st.sampled_from(families), st.sampled_from(whole), st.sampled_from(layouts), requests(1, 3), rooms, pieces)
    def check(family: str, prompts: str, answering: str, orders: Requests, room: int, piece: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            directory = make(family, Path(folder))
            spec = spec_of(directory)
            turns = turns_of(orders, cancelled=False)
            plans = laid_out(prompts, spec), laid_out(answering, spec)
            found = answers_apart(directory, *plans, *turns, cache_tokens=room, batch_tokens=piece)
            assert found.tokens == answers(directory, *turns, prefix_cache=False).tokens

    check()


@pytest.mark.parametrize("whole", [False, True])
def test_all_that_a_prompt_has_kept_goes_over_once(tmp_path: Path, whole: bool) -> None:
    directory = make("llama", tmp_path)
    plan = make_plan(spec_of(directory))
    sizes: list[int] = []

    def prepare(end: HandOverEnd) -> None:
        sizes.append(sum(each.heads * each.size for each in end.inbox.held))

    found = answers_apart(directory, plan, plan, [add(1, LONG)], prepare=prepare, whole=whole)
    assert [each.blocks for each in found.received] == [3]
    (handed,) = found.handed
    assert handed.size == 3 * sizes[0]
    assert 0.0 <= handed.behind <= handed.seconds


@pytest.mark.parametrize("layers", [0, 3])
def test_a_prompt_whose_ranks_are_lost_is_computed_here(tmp_path: Path, layers: int) -> None:
    """``layers`` of pieces go over before."""
    directory = make("llama", tmp_path)
    plan = make_plan(spec_of(directory))
    expected = answers(directory, TURNS[0], prefix_cache=False)
    left = layers

    def prepare(end: HandOverEnd) -> None:
        run = end._runner._step

        def losing(*batch: object) -> None:
            nonlocal left
            run(*batch)  # type: ignore[arg-type]
            outbox = end._runner.outbox
            if outbox is not None and end.prompts:
                left -= 1
                if left < 0:
                    outbox.group.abort("a test ends it")

        end._runner._step = losing  # type: ignore[method-assign]

    found = answers_apart(directory, plan, plan, TURNS[0], prepare=prepare)
    assert found.tokens == expected.tokens
    assert found.parted
    assert sum(each.blocks for each in found.received) < sum(each.wanted for each in found.received)


def test_a_prompt_that_does_not_come_is_computed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "PATIENCE", 0.05)
    directory = make("llama", tmp_path)
    plan = make_plan(spec_of(directory))
    expected = answers(directory, TURNS[0], prefix_cache=False)
    found = answers_apart(directory, plan, plan, TURNS[0], deaf=True)
    assert found.tokens == expected.tokens
    assert [each.blocks for each in found.received] == [0, 0]

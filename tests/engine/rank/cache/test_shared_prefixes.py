"""Sequences that begin alike are computed once, and say what they would say alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plugged import emulated
from prefix_ranks import BEGINNING, CONTEXT, Requests, add, answers, prompt, requests, turns_of
from tiny_adapters import make_adapter
from tiny_models import long_rope, make

from ferrule.engine.messages import Cancel
from ferrule.engine.options import parse_adapters
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner


def turns() -> list[Any]:
    """A request; two that begin as it does, of which one is the same; one that goes on where the first has ended; and
    others with nothing in common, or one block."""
    return [
        [add(1, BEGINNING)],
        [add(2, BEGINNING), add(3, (*BEGINNING[:130], 7, 8, 9), max_tokens=20)],
        [add(4, prompt(2, 90)), add(5, (*BEGINNING[:70], *prompt(3, 30)))],
    ]


@pytest.mark.parametrize(
    ("name", "split", "runner"),
    [
        ("llama", (2, 1), StepRunner),
        ("llama", (1, 2), StepRunner),
        ("deepseek_v3", (1, 1), StepRunner),
        ("gemma3_text", (1, 1), TorchRunner),
        ("deepseek_v32", (1, 1), TorchRunner),
        ("gemma3n_text", (1, 1), TorchRunner),
    ],
)
def test_answers_are_the_same_and_what_they_have_in_common_is_computed_once(
    name: str, split: tuple[int, int], runner: Any, tmp_path: Path
) -> None:
    directory = make(name, tmp_path)
    without = answers(directory, *turns(), split=split, runner=runner, prefix_cache=False)
    found = answers(directory, *turns(), split=split, runner=runner)
    assert found.tokens == without.tokens
    assert set(without.cached.values()) == {0}
    assert found.cached == {1: 0, 2: 2 * BLOCK, 3: 2 * BLOCK, 4: 0, 5: BLOCK}
    assert found.computed == without.computed - 5 * BLOCK


def test_an_answer_is_part_of_what_its_conversation_goes_on_with(tmp_path: Path) -> None:
    directory = make("llama", tmp_path)
    first = add(1, BEGINNING, max_tokens=BLOCK + 9)
    said = tuple(answers(directory, [first], prefix_cache=False).tokens[1])
    again = add(2, (*BEGINNING, *said, 5, 6, 7))
    interrupted = add(3, BEGINNING, said[:-4], max_tokens=BLOCK + 9)  # as after a crash
    found = answers(directory, [first], [again], [interrupted])
    assert found.tokens[2] == answers(directory, [again], prefix_cache=False).tokens[2]
    assert (*said[:-4], *found.tokens[3]) == said
    assert found.cached == {1: 0, 2: 3 * BLOCK}, "of an answer that goes on the first token is known"
    assert found.driver.scheduler.hits == 6 * BLOCK


@pytest.mark.parametrize("runner", [StepRunner, TorchRunner])
def test_in_a_small_cache_blocks_give_way(runner: Any, tmp_path: Path) -> None:
    """Also where sequences are preempted or cancelled, and blocks are gone by the time they are wanted again."""
    directory = make("llama", tmp_path)
    steps: list[Any] = [
        [add(number, (*BEGINNING[: 20 * number], *prompt(number, 40)), max_tokens=40) for number in range(1, 5)],
        [add(11, BEGINNING), add(12, prompt(12, 150), max_tokens=50), Cancel(12)],
        [add(21, prompt(21, 200)), add(22, (*BEGINNING, 9))],
        [add(31, BEGINNING[:100], max_tokens=90), add(32, BEGINNING), Cancel(31)],
    ]
    given: dict[str, Any] = {"runner": runner, "cache_tokens": CONTEXT}
    without, found = answers(directory, *steps, prefix_cache=False, **given), answers(directory, *steps, **given)
    kept = set(found.tokens) - {12, 31}
    assert {number: found.tokens[number] for number in kept} == {number: without.tokens[number] for number in kept}
    assert len(kept) == 8
    assert sum(found.cached.values()) > 0
    held, prefixes = found.driver.prefixes.tokens, found.driver.prefixes
    assert held <= CONTEXT
    assert held or prefixes.copies, "which take room beside what runs"
    assert prefixes.evict(99) * BLOCK == held, "nothing runs, so that all can go"


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    requests(2, 4), st.sampled_from([(1, 1), (2, 1), (1, 2)]), st.sampled_from([CONTEXT, 2 * CONTEXT]), st.booleans()
)
def test_any_schedule_gives_what_it_gives_without(
    orders: Requests, split: tuple[int, int], room: int, cancelled: bool
) -> None:
    steps = turns_of(orders, cancelled=cancelled)
    with tempfile.TemporaryDirectory() as folder:
        directory = make("llama", Path(folder), num_hidden_layers=2)
        without = answers(directory, *steps, split=split, cache_tokens=room, prefix_cache=False)
        found = answers(directory, *steps, split=split, cache_tokens=room)
    gone = {order.id for turn in steps for order in turn if isinstance(order, Cancel)}
    for number in without.tokens.keys() | found.tokens.keys():
        one, other = found.tokens.get(number, []), without.tokens.get(number, [])
        count = min(len(one), len(other)) if number in gone else None
        assert one[:count] == other[:count]
    assert found.computed <= without.computed or room == CONTEXT


def test_what_is_not_alike_is_not_shared(tmp_path: Path) -> None:
    """Prompts whose log-probabilities are wanted are computed whole, and kept."""
    directory = make("llama", tmp_path / "model")
    one = make_adapter(directory, tmp_path / "one")
    adapters = parse_adapters([f"one={one}"])
    found = answers(
        directory,
        [add(1, BEGINNING, prompt_logprobs=0)],
        [add(2, BEGINNING, adapter="one")],
        [add(3, BEGINNING, adapter="one"), add(4, BEGINNING), add(5, BEGINNING, prompt_logprobs=0)],
        adapters=adapters,
    )
    assert found.cached == {1: 0, 2: 0, 3: 2 * BLOCK, 4: 2 * BLOCK, 5: 0}
    assert found.tokens[2] == found.tokens[3] != found.tokens[1] == found.tokens[4]


def test_long_sequences_share_with_long_ones(tmp_path: Path) -> None:
    """Their keys are of other rotary frequencies (LongRoPE)."""
    border = BLOCK + 20
    directory = make("phi3", tmp_path, **long_rope(border))
    steps: list[Any] = [[add(1, BEGINNING[: BLOCK + 4])], [add(2, BEGINNING)], [add(3, BEGINNING[:-1])]]
    steps.append([add(4, BEGINNING[: BLOCK + 9], max_tokens=30)])  # it becomes a long one
    given: dict[str, Any] = {"runner": TorchRunner, "short": border}
    without, found = answers(directory, *steps, prefix_cache=False, **given), answers(directory, *steps, **given)
    assert found.tokens == without.tokens
    assert found.cached == {1: 0, 2: 0, 3: 2 * BLOCK, 4: BLOCK}


def test_recurrent_layers_keep_what_cannot_be_shared(tmp_path: Path) -> None:
    directory = make("lfm2", tmp_path)
    found = answers(directory, [add(1, BEGINNING)], [add(2, BEGINNING)], runner=TorchRunner)
    assert found.cached == {1: 0, 2: 0}
    assert not found.driver.prefixes.enabled


@pytest.mark.slow
def test_pages_of_an_accelerator_are_shared(tmp_path: Path) -> None:
    directory = make("llama", tmp_path, num_hidden_layers=1)
    steps: list[Any] = [[add(1, BEGINNING[:70], max_tokens=3)], [add(2, BEGINNING[:68], max_tokens=2)]]
    found = answers(directory, *steps, runner=TorchRunner, device=emulated)
    assert not found.driver.prefixes.copies
    assert found.tokens == answers(directory, *steps, prefix_cache=False).tokens
    assert found.cached == {1: 0, 2: BLOCK}


@pytest.mark.parametrize(
    ("split", "runner"),
    [((2, 1), StepRunner), pytest.param((1, 2), StepRunner, marks=pytest.mark.slow), ((1, 1), TorchRunner)],
)
def test_blocks_come_back_from_disk(
    split: tuple[int, int], runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not where a rank misses one, or it is damaged: then all compute it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = make("llama", tmp_path / "model")
    given: dict[str, Any] = {"split": split, "runner": runner, "prefix_disk": 1 << 24, "identity": "llama"}
    first = answers(directory, *turns(), **given)
    files = sorted((tmp_path / "cache").glob("ferrule/prefix/rank-*/*/" + "?" * 32))
    ranks = split[0] * split[1]
    assert len(files) == ranks * len(first.driver.prefixes.stored) > 0
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    again = answers(directory, [add(1, BEGINNING)], [add(2, (*BEGINNING[:70], *prompt(3, 30)))], **given)
    assert again.tokens == {1: first.tokens[1], 2: first.tokens[5]}
    assert again.cached == {1: 2 * BLOCK, 2: BLOCK}
    blocks = again.driver.prefixes.blocks.values()
    second = next(block for block in blocks if block.parent is not None and block.parent.children == 1)
    damaged = [file for file in files if file.name == second.key.hex()][-1]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    mended = answers(directory, [add(1, BEGINNING)], [add(2, BEGINNING)], **given)
    assert mended.tokens == {1: first.tokens[1], 2: first.tokens[1]}
    assert mended.cached == {1: BLOCK, 2: 2 * BLOCK}
    damaged.unlink()
    other = answers(directory, [add(1, BEGINNING)], **given | {"identity": "another model"})
    assert other.cached == {1: 0}
    assert answers(directory, [add(1, BEGINNING)], **given).cached == {1: BLOCK}, "each rank starts with what all have"
    smaller = answers(directory, [add(1, BEGINNING)], **given | {"prefix_disk": 100})
    assert smaller.cached == {1: 0}
    assert not any(file.exists() for file in files), "there is no room for one block"

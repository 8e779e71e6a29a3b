"""Answers with guessed tokens, of ranks in threads: what they would be without, whatever is guessed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from plugged import emulated
from prefix_ranks import Answers, add, answers, prompt, speculated_turns
from tiny_adapters import make_adapter
from tiny_models import long_rope, make

from ferrule.engine.messages import Add, Cancel
from ferrule.engine.options import parse_adapters
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.driver.guesses import Guesses, Lookup
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner

MOST = 4


class Known:
    """Guesses of texts that are known, but for some tokens. ``wrong``: how many guesses differed from the text."""

    def __init__(self, turns: Sequence[Any], found: Answers) -> None:
        added = [order for turn in turns for order in turn if isinstance(order, Add)]
        self.texts = [(*order.prompt, *order.made, *found.tokens[order.id]) for order in added]
        self.right = self.wrong = 0

    def guess(self, _: Lookup, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        known = next((text for text in self.texts if list(text[: len(tokens)]) == list(tokens)), None)
        if known is None:
            return (5,) * most
        right = known[len(tokens) :][:most]
        found = tuple(token if (len(tokens) + at) % 7 else (token + 1) % 131 for at, token in enumerate(right))
        self.wrong += found != right
        self.right += found == right
        return found


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long steps take."""
    monkeypatch.setattr(Guesses, "worth", lambda self, price, most: most)


def check(directory: Path, turns: list[Any], patch: pytest.MonkeyPatch, least: int = 6, **given: Any) -> Answers:
    """``least``: of guesses that are right, and that are not."""
    without = answers(directory, *turns, **given)
    known = Known(turns, without)
    patch.setattr(Lookup, "guess", lambda *asked: known.guess(*asked))
    found = answers(directory, *turns, speculate=MOST, **given)
    assert found.tokens == without.tokens
    assert found.cached == without.cached
    assert min(known.right, known.wrong) >= least
    speculation = found.driver.speculation
    assert speculation is not None
    assert speculation.drafted > speculation.accepted > speculation.drafted // 3
    return found


@pytest.mark.parametrize(
    ("name", "split", "runner"),
    [
        ("llama", (2, 1), StepRunner),
        pytest.param("llama", (1, 2), StepRunner, marks=pytest.mark.slow),
        pytest.param("llama", (2, 2), StepRunner, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", (1, 1), StepRunner, marks=pytest.mark.slow),
        pytest.param("gemma3_text", (1, 2), TorchRunner, marks=pytest.mark.slow),
        pytest.param("deepseek_v32", (1, 1), TorchRunner, marks=pytest.mark.slow),
    ],
)
def test_answers_are_the_same(
    name: str, split: tuple[int, int], runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and sampled ones; the second turn begins with blocks of the first, answers included."""
    check(make(name, tmp_path), speculated_turns(), monkeypatch, split=split, runner=runner)


def test_what_was_foretold_takes_fewer_steps(tmp_path: Path) -> None:
    directory = make("llama", tmp_path)
    said = tuple(answers(directory, [add(1, prompt(1, 40), max_tokens=40, temperature=1.0, seed=1)]).tokens[1])
    order = add(1, prompt(1, 40), max_tokens=40, temperature=1.0, seed=1, predicted=said)
    found = answers(directory, [order], speculate=MOST)
    assert tuple(found.tokens[1]) == said
    assert found.driver.speculation is not None
    assert found.driver.speculation.accepted >= 30


@pytest.mark.parametrize("runner", [StepRunner, TorchRunner])
@pytest.mark.slow
def test_in_a_small_cache_and_after_a_crash(runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences are preempted; an interrupted answer goes on; prompts are scored, and adapters differ."""
    directory = make("llama", tmp_path / "model")
    said = tuple(answers(directory, [add(1, prompt(1, 40), max_tokens=60)]).tokens[1])
    steps: list[Any] = [
        [add(number, prompt(number, 40), max_tokens=70) for number in range(2, 6)],
        [add(1, prompt(1, 40), said[:-20], max_tokens=60), add(6, prompt(6, 90), max_tokens=20, prompt_logprobs=1)],
        [add(7, prompt(1, 40), max_tokens=30, adapter="one"), add(8, prompt(1, 40), max_tokens=30)],
    ]
    adapters = parse_adapters([f"one={make_adapter(directory, tmp_path / 'one')}"])
    found = check(directory, steps, monkeypatch, runner=runner, cache_tokens=256, adapters=adapters)
    assert tuple(found.tokens[1]) == said[-20:]
    assert found.tokens[7] != found.tokens[8]


@pytest.mark.slow
def test_long_sequences_begin_where_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    border = BLOCK + 20
    directory = make("phi3", tmp_path, **long_rope(border))
    steps: list[Any] = [[add(1, prompt(1, BLOCK), max_tokens=60)], [add(2, prompt(2, 2 * BLOCK), max_tokens=20)]]
    check(directory, steps, monkeypatch, runner=TorchRunner, short=border)


@pytest.mark.slow
def test_steps_of_an_accelerator_are_captured_and_its_pages_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make("llama", tmp_path, num_hidden_layers=1)
    steps: list[Any] = [[add(1, prompt(1, 55), max_tokens=18), add(2, prompt(2, 30), max_tokens=9, seed=4)]]
    found = check(directory, steps, monkeypatch, 2, runner=TorchRunner, device=emulated)
    runner: Any = found.driver.runner
    assert max(size.rows for size in runner.captured.steps) >= 2 * MOST, "both sequences have guesses"


def test_a_recurrent_state_cannot_be_cut_back(tmp_path: Path) -> None:
    found = answers(make("lfm2", tmp_path), [add(1, prompt(1, 20))], runner=TorchRunner, speculate=MOST)
    assert found.driver.speculation is None
    assert len(found.tokens[1]) == 6


@pytest.mark.slow
def test_one_that_is_cancelled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lookup, "guess", lambda self, tokens, most: (7,) * most)
    steps: list[Any] = [[add(1, prompt(1, 60), max_tokens=90), add(2, prompt(2, 60), max_tokens=40), Cancel(1)]]
    given: dict[str, Any] = {"split": (1, 2), "cache_tokens": 256}
    found = answers(make("llama", tmp_path), *steps, speculate=MOST, **given)
    assert found.tokens[2] == answers(make("llama", tmp_path / "again"), *steps, **given).tokens[2]
    held = found.driver.scheduler._used()
    assert found.driver.prefixes.evict(99) * BLOCK == held > 0

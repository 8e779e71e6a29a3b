"""Answers with tokens that a draft model guesses, of ranks in threads: what they would be without, whatever it says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from prefix_ranks import Answers, add, answers, prompt, speculated_turns
from safetensors.torch import load_file, save_file
from tiny_adapters import make_adapter
from tiny_models import make

from ferrule.engine.messages import Cancel
from ferrule.engine.options import parse_adapters
from ferrule.engine.rank.driver.drafting import Drafting
from ferrule.engine.rank.driver.guesses import Guesses
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner

MOST = 4


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long steps take."""
    monkeypatch.setattr(Guesses, "worth", lambda self, price, most: most)


def alike(directory: Path, other: Path, noise: float = 0.05) -> Path:
    """A model that often says what that of ``directory`` does."""
    shutil.copytree(directory, other)
    generator = torch.Generator().manual_seed(1)
    for file in other.glob("*.safetensors"):
        tensors = {
            name: tensor + noise * tensor.std() * torch.randn(tensor.shape, generator=generator)
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file, {"format": "pt"})
    return other


def check(directory: Path, draft: Path, turns: list[Any], **given: Any) -> Answers:
    without = answers(directory, *turns, **given)
    found = answers(directory, *turns, speculate=MOST, draft=draft, **given)
    assert found.tokens == without.tokens
    assert found.cached == without.cached
    return found


def drafting(found: Answers) -> Drafting:
    assert isinstance(found.driver.speculation, Drafting)
    return found.driver.speculation


@pytest.mark.parametrize(
    ("name", "split", "runner"),
    [
        ("llama", (2, 1), StepRunner),
        pytest.param("llama", (1, 2), StepRunner, marks=pytest.mark.slow),
        pytest.param("llama", (2, 2), StepRunner, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", (1, 1), StepRunner, marks=pytest.mark.slow),
        pytest.param("gemma3_text", (1, 2), TorchRunner, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("always")
def test_answers_are_the_same(name: str, split: tuple[int, int], runner: Any, tmp_path: Path) -> None:
    """Greedy and sampled ones; the second turn begins with blocks of the first, answers included."""
    directory = make(name, tmp_path / "model")
    draft = alike(directory, tmp_path / "draft")
    used = drafting(check(directory, draft, speculated_turns(), split=split, runner=runner))
    assert used.drafted > used.accepted > used.drafted // 10
    assert used.draft.seconds.known


@pytest.mark.usefixtures("always")
def test_all_guesses_of_the_same_model_come_true(tmp_path: Path) -> None:
    """So its cache is in step: also behind guesses that were dropped with what ended, and prompts of other lengths."""
    directory = make("llama", tmp_path)
    asked = [[add(number, prompt(number, 20 * number), max_tokens=31)] for number in (1, 2, 3)]
    beside = [add(number, prompt(number, 9 + 31 * number), max_tokens=31) for number in (4, 5, 6)]
    used = drafting(check(directory, directory, [*asked, beside]))
    assert used.accepted == used.drafted > 100


@pytest.mark.slow
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("runner", [StepRunner, TorchRunner])
def test_in_a_small_cache_and_after_a_crash(runner: Any, tmp_path: Path) -> None:
    """Sequences are preempted; an interrupted answer goes on; prompts are scored, and adapters differ."""
    directory = make("llama", tmp_path / "model")
    said = tuple(answers(directory, [add(1, prompt(1, 40), max_tokens=60)]).tokens[1])
    steps: list[Any] = [
        [add(number, prompt(number, 40), max_tokens=70) for number in range(2, 6)],
        [add(1, prompt(1, 40), said[:-20], max_tokens=60), add(6, prompt(6, 90), max_tokens=20, prompt_logprobs=1)],
        [add(7, prompt(1, 40), max_tokens=30, adapter="one"), add(8, prompt(1, 40), max_tokens=30)],
    ]
    adapters = parse_adapters([f"one={make_adapter(directory, tmp_path / 'one')}"])
    draft = alike(directory, tmp_path / "draft")
    found = check(directory, draft, steps, runner=runner, cache_tokens=256, adapters=adapters)
    assert tuple(found.tokens[1]) == said[-20:]
    assert drafting(found).accepted > 50
    assert set(drafting(found).draft.kept) <= {7, 8}, "the others were forgotten"


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_one_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    directory = make("llama", tmp_path)
    steps: list[Any] = [
        [add(1, prompt(1, 60), max_tokens=90), add(2, prompt(2, 60), max_tokens=40), Cancel(1)],
        [add(3, prompt(3, 9), max_tokens=9)],
    ]
    found = answers(directory, *steps, speculate=MOST, draft=directory, split=(1, 2), cache_tokens=256)
    assert found.tokens[2] == answers(directory, *steps, split=(1, 2), cache_tokens=256).tokens[2]
    assert set(drafting(found).draft.kept) <= {3}


@pytest.mark.usefixtures("always")
def test_what_the_draft_model_cannot_take_is_not_guessed(tmp_path: Path) -> None:
    """Texts with tokens that it does not know, and those that are longer than it takes."""
    directory = make("llama", tmp_path / "model", num_hidden_layers=1)
    fewer = make("llama", tmp_path / "fewer", num_hidden_layers=1, vocab_size=60)
    assert max(prompt(1, 20)) >= 60
    assert drafting(check(directory, fewer, [[add(1, prompt(1, 20), max_tokens=20)]])).drafted == 0
    config = directory / "config.json"
    shorter = Path(shutil.copytree(directory, tmp_path / "shorter"))
    told = config.read_text().replace('"max_position_embeddings": 256', '"max_position_embeddings": 64')
    (shorter / "config.json").write_text(told)
    used = drafting(check(directory, shorter, [[add(1, prompt(1, 20), max_tokens=100)]]))
    assert 64 - 20 - 3 * MOST <= used.drafted <= 64 - 20


def test_a_draft_model_that_does_not_pay_rests(tmp_path: Path) -> None:
    """One with other weights, which as a large part of a step's time pays for nothing."""
    directory = make("llama", tmp_path / "model")
    other = make("llama", tmp_path / "draft", rms_norm_eps=1e-3, num_hidden_layers=8)
    found = check(directory, other, [[add(1, prompt(1, 40), max_tokens=200)]])
    used = drafting(found)
    assert used.drafted <= 40, "after four attempts it rests for 16 tokens, 32, 64"

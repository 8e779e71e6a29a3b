"""Answers with tokens that the model's own layer for multi-token prediction guesses, of ranks in threads: what they
would be without, whatever it says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import prefix_ranks
import pytest
from in_threads import on_plan
from mtp_models import LAYERS, Formula, make_mtp
from plugged import emulated
from prefix_ranks import Answers, add, answers, prompt, speculated_turns
from test_parity import plan_for

from ferrule.engine.messages import Cancel
from ferrule.engine.options import Draft, RankOptions
from ferrule.engine.rank.draft.load import open_draft
from ferrule.engine.rank.draft.mtp import MtpDraft
from ferrule.engine.rank.driver.drafting import Drafting
from ferrule.engine.rank.driver.guesses import Guesses
from ferrule.engine.rank.runner import choose_runner
from ferrule.engine.rank.sequence import Sequence
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.shards.needs import needs
from ferrule.engine.spec import read_mtp_spec
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.model import read_mtp
from ferrule.plan import make_plan

MOST = 3


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long steps take."""
    monkeypatch.setattr(Guesses, "worth", lambda self, price, most: most)


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Texts, and what was guessed to follow them."""
    found: list[tuple[list[int], list[int]]] = []
    guess = MtpDraft.guess

    def noted(self: MtpDraft, wanted: Mapping[Sequence, int], *given: Any) -> dict[int, list[int]]:
        made = guess(self, wanted, *given)
        found.extend((list(each.tokens), made[each.identity]) for each in wanted if each.identity in made)
        return made

    monkeypatch.setattr(MtpDraft, "guess", noted)
    return found


def check(directory: Path, turns: list[Any], **given: Any) -> Answers:
    without = answers(directory, *turns, **given)
    found = answers(directory, *turns, speculate=MOST, mtp=True, **given)
    assert found.tokens == without.tokens
    assert found.cached == without.cached
    return found


def drafting(found: Answers) -> Drafting:
    assert isinstance(found.driver.speculation, Drafting)
    return found.driver.speculation


@pytest.mark.parametrize(
    ("name", "split", "runner"),
    [
        ("deepseek_v3", (2, 1), StepRunner),
        ("glm4_moe", (1, 1), StepRunner),
        pytest.param("deepseek_v3", (1, 1), TorchRunner, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", (2, 2), StepRunner, marks=pytest.mark.slow),
        pytest.param("glm4_moe", (2, 1), StepRunner, marks=pytest.mark.slow),
        pytest.param("glm4_moe", (2, 1), TorchRunner, marks=pytest.mark.slow),
        pytest.param("glm4_moe_lite", (1, 2), TorchRunner, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("always")
def test_answers_are_the_same_and_guesses_are_the_formulas(
    name: str,
    split: tuple[int, int],
    runner: Any,
    tmp_path: Path,
    guessed: list[tuple[list[int], list[int]]],
) -> None:
    """Greedy and sampled ones, of prompts that come in pieces."""
    directory = make_mtp(name, tmp_path / "model")
    used = drafting(check(directory, speculated_turns()[:1], split=split, runner=runner))
    assert used.drafted > used.accepted
    formula, some = Formula(directory, tmp_path / "with"), guessed[::7]
    assert len(some) > 5
    assert [made for _, made in some] == [formula.guesses(text, len(made)) for text, made in some]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("split", [(1, 1), (2, 1)])
def test_a_layer_that_knows_saves_steps(split: tuple[int, int], tmp_path: Path) -> None:
    directory = make_mtp("deepseek_v3", tmp_path, echoes=True)
    asked = [[add(number, prompt(number, 30 + 50 * number), max_tokens=41)] for number in (1, 2)]
    found = check(directory, asked, split=split)
    used = drafting(found)
    assert used.accepted == used.drafted > 40, "of 80 tokens more than half came with another one"


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("runner", [StepRunner, pytest.param(TorchRunner, marks=pytest.mark.slow)])
def test_what_is_in_the_prefix_cache_is_known_of_a_text(
    runner: Any, tmp_path: Path, guessed: list[tuple[list[int], list[int]]]
) -> None:
    """Also of an answer, while another one goes on."""
    directory = make_mtp("glm4_moe", tmp_path / "model")
    first = add(1, prompt(1, 70), max_tokens=90)
    said = tuple(answers(directory, [first], runner=runner).tokens[1])
    second = [add(2, (*first.prompt, *said[:80], *prompt(2, 9)), max_tokens=20), add(3, prompt(3, 20), max_tokens=40)]
    found = check(directory, [[first], second], runner=runner)
    assert found.cached[2] == 128
    formula, later = Formula(directory, tmp_path / "with"), [each for each in guessed if len(each[0]) > 160][::5]
    assert len(later) > 2
    assert [made for _, made in later] == [formula.guesses(text, len(made)) for text, made in later]


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_an_accelerator_keeps_hidden_states_in_its_memory(
    tmp_path: Path, guessed: list[tuple[list[int], list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def there(world: Any, options: RankOptions, *given: Any) -> Any:
        return open_draft(world, replace(options, device="emulated"), *given)

    monkeypatch.setattr(prefix_ranks, "open_draft", there)
    directory = make_mtp("glm4_moe", tmp_path / "model")
    asked = [add(1, prompt(1, 70), max_tokens=9)]
    found = answers(directory, asked, speculate=MOST, mtp=True, runner=TorchRunner, device=emulated)
    assert found.tokens == answers(directory, asked).tokens
    assert found.driver.runner.captured is None  # type: ignore[attr-defined]
    formula = Formula(directory, tmp_path / "with")
    assert [made for _, made in guessed] == [formula.guesses(text, len(made)) for text, made in guessed]


@pytest.mark.slow
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("runner", [StepRunner, TorchRunner])
def test_in_a_small_cache_and_after_a_crash(runner: Any, tmp_path: Path) -> None:
    """Sequences are preempted; an interrupted answer goes on; prompts are scored; one is cancelled."""
    directory = make_mtp("glm4_moe", tmp_path, echoes=True)
    said = tuple(answers(directory, [add(1, prompt(1, 40), max_tokens=60)]).tokens[1])
    steps: list[Any] = [
        [add(number, prompt(number, 40), max_tokens=70) for number in range(2, 6)],
        [add(1, prompt(1, 40), said[:-20], max_tokens=60), add(6, prompt(6, 90), max_tokens=20, prompt_logprobs=1)],
    ]
    found = check(directory, steps, runner=runner, cache_tokens=256)
    assert tuple(found.tokens[1]) == said[-20:]
    used = drafting(found)
    assert used.accepted == used.drafted > 50
    steps = [[add(1, prompt(1, 60), max_tokens=90), add(2, prompt(2, 60), max_tokens=40), Cancel(1)]]
    found = answers(directory, *steps, speculate=MOST, mtp=True, runner=runner)
    assert found.tokens[2] == answers(directory, *steps, runner=runner).tokens[2]
    assert drafting(found).draft.followed == {}  # type: ignore[attr-defined]


def test_a_layer_that_does_not_pay_rests(tmp_path: Path) -> None:
    """A random one, which as a large part of a step's time pays for nothing."""
    used = drafting(check(make_mtp("glm4_moe", tmp_path), [[add(1, prompt(1, 40), max_tokens=200)]]))
    assert used.accepted < used.drafted <= 40, "after four attempts it rests for 16 tokens, 32, 64"


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe", pytest.param("glm4_moe_lite", marks=pytest.mark.slow)])
def test_its_memory_is_what_was_planned(name: str, tmp_path: Path) -> None:
    """But for embedding and output matrix, where a step program has those of the model whole."""
    directory = make_mtp(name, tmp_path)
    found, planned = read_mtp_spec(directory), read_mtp(str(directory))
    assert (found.parameters, found.bytes, found.layers) == (planned.parameters, planned.bytes, 1)
    held = found.in_engine
    assert held.bytes == planned.in_engine.bytes
    draft = Draft(str(directory), "", make_plan(found), found.max_context, mtp=True)
    for tensor, pipeline in ((1, 1), (2, 1), (1, 2)):
        plan = plan_for(directory, tensor, pipeline)
        options = RankOptions(str(directory), "float32", plan, 1, 64, 4, 64, (), draft=draft, speculate=1)

        def body(world: Any, stage: Any, options: RankOptions = options) -> int | None:
            model = choose_runner(options, world, stage, lambda _: None)
            mine = draft if world.rank == options.plan.driver else None
            layer = open_draft(world, options, mine, None, lambda _: None, nullcontext, model)
            if layer is None:
                return None
            layer.world.close()
            return layer.weight_bytes

        (size,) = [each for each in on_plan(plan, body) if each is not None]
        saved = 0
        if name in ("deepseek_v3", "glm4_moe") and tensor == 1:
            saved = held.head.bytes + (held.embedding.bytes if pipeline == 1 else 0)
        assert size == held.bytes - saved


def test_a_host_without_the_files_gets_what_the_layer_is_made_of(tmp_path: Path) -> None:
    directory = make_mtp("deepseek_v3", tmp_path)
    shard = make_plan(read_mtp_spec(directory)).shards[0]
    asked = {piece.key for piece in needs(directory, "float32", shard, mtp=True)}
    own = {key for key in Checkpoint(directory).stored if key.startswith(f"model.layers.{LAYERS}.")}
    copies = {f"model.layers.{LAYERS}.embed_tokens.weight", f"model.layers.{LAYERS}.shared_head.head.weight"}
    assert asked == (own - copies) | {"model.embed_tokens.weight", "lm_head.weight"}

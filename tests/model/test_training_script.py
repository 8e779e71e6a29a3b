"""The script that makes the embedded model: its text, its packing and a smoke run of the whole."""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ferrule.model import demo_path

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.fixture(scope="module")
def documentation() -> Any:
    """Reading it takes most of the script's smoke run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        from demo_model.docstrings import read_documentation

        return read_documentation()


@pytest.fixture
def torch_as_before() -> Iterator[None]:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("return", "returns"),
        ("parse", "parses"),
        ("push", "pushes"),
        ("copy", "copies"),
        ("delay", "delays"),
        ("do", "does"),
    ],
)
def test_third_person(verb: str, expected: str) -> None:
    from demo_model.conversations import third_person

    assert third_person(verb) == expected


def test_a_description_begins_with_the_name_and_ends_with_a_sentence() -> None:
    from demo_model.conversations import describe
    from demo_model.docstrings import Entry

    doc = "Return the\nlength of x.  It is never negative.\n\n    >>> f('')\n    0"
    entry = Entry("m", "m.f", "function", "m.f(x)", doc)
    assert describe(entry) == "`m.f` returns the length of x. It is never negative."
    assert describe(entry, limit=30) == "`m.f` returns the length of x."


def test_conversations_are_encoded_as_the_chat_template_renders_them() -> None:
    from demo_model.tokens import encode_chat

    tokenizer = AutoTokenizer.from_pretrained(demo_path())
    turns = [("system", "Be concise."), ("user", "What is len?"), ("assistant", "`len` returns the length.")]
    ids, labels = encode_chat(tokenizer, turns)
    messages = [{"role": role, "content": text} for role, text in turns]
    assert ids == tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    learned = [label for label in labels if label != -100]
    assert tokenizer.decode(learned) == "`len` returns the length.<|end|>"
    assert len(labels) == len(ids)


def test_batches_are_full_and_the_same_each_time() -> None:
    from demo_model.batches import Packer
    from demo_model.conversations import Lesson
    from demo_model.corpus import Corpus

    tokenizer = AutoTokenizer.from_pretrained(demo_path())
    lessons = tuple(Lesson((f"What is {n}?",), f"It is the number {n}, and one more is {n + 1}.") for n in range(40))
    corpus = Corpus(documents=("A text about numbers. " * 200,), lessons=lessons)
    first, second = (Packer(corpus, tokenizer, rows=4, row=64, seed=1) for _ in range(2))
    for _ in range(5):
        ids, labels = first.batch(plain_share=0.5)
        again, _ = second.batch(plain_share=0.5)
        assert ids.shape == labels.shape == (4, 64)
        assert (ids == again).all()
        assert ((labels == ids) | (labels == -100)).all()
        assert (ids == tokenizer.pad_token_id).float().mean() < 0.2


@pytest.mark.slow
def test_the_documentation_is_this_pythons_and_holds_no_path_of_this_machine(documentation: Any) -> None:
    names = {entry.name for entry in documentation.known}
    assert {"len", "str.split", "json.dumps", "math.sqrt", "os.path.join", "asyncio.gather"} <= names
    assert "logging.Logger.warning_once" not in names  # a stranger's method, there once transformers is imported
    assert "for" in documentation.topics
    signatures = {entry.name: entry.signature for entry in documentation.known}
    assert signatures["platform.architecture"] == "platform.architecture(executable=..., bits='', linkage='')"


@pytest.mark.slow
@pytest.mark.usefixtures("torch_as_before")
def test_the_whole_script_runs_resumes_and_makes_a_model_that_loads(
    documentation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    def arguments(out: Path) -> list[str]:
        script = SCRIPTS / "train_demo_model.py"
        return [str(script), "--quick", "--out", str(out), "--checkpoint", str(tmp_path / "state.pt")]

    done = subprocess.run([sys.executable, *arguments(first)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "sha256" in done.stdout
    # Again in this process, with what was read already.
    monkeypatch.setattr("demo_model.corpus.read_documentation", lambda: documentation)
    monkeypatch.setattr(sys, "argv", arguments(second))
    runpy.run_path(sys.argv[0], run_name="__main__")
    assert "going on from step 5" in capsys.readouterr().out
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    model = AutoModelForCausalLM.from_pretrained(first)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(first))
    assert f"{model.num_parameters():,} parameters" in (first / "README.md").read_text()

"""Tokenizers read from a directory's files against those that transformers makes of the same files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_tokenizers import OTHERS, PLAIN, TEXTS, bert, byte_level, code_of_its_own, qwen_2, save
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ferrule.bench.random_model import RandomModel, save_random_model
from ferrule.engine.tokenizer.by_transformers import read_by_transformers
from ferrule.engine.tokenizer.files import read_files
from ferrule.engine.tokenizer.model import ModelTokenizer
from ferrule.engine.tokenizer.parts import FastCodec
from ferrule.errors import ModelError
from ferrule.model import demo_path
from ferrule.serve.answer.text import Detokenizer, Vocabulary

KINDS = {each.__name__: each for each in [*PLAIN, *OTHERS]}


def compare(directory: Path, theirs: Any = None, texts: list[str] = TEXTS) -> None:
    ours = ModelTokenizer(directory)
    theirs = theirs or AutoTokenizer.from_pretrained(directory)
    assert ours.eos_token_id == theirs.eos_token_id
    for text in texts:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special), text
            for skip in (True, False):
                expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert ours.decode(ids, skip_special_tokens=skip) == expected, text


@pytest.mark.parametrize("kind", KINDS)
def test_texts_become_the_tokens_that_transformers_makes(kind: str, tmp_path: Path) -> None:
    directory = KINDS[kind](tmp_path)
    compare(directory)
    theirs = AutoTokenizer.from_pretrained(directory)
    ours = ModelTokenizer(directory)
    assert {n: str(t) for n, t in read_files(directory).special.items()}.items() <= theirs.special_tokens_map.items()
    for token in range(len(theirs)):
        for skip in (True, False):
            assert ours.decode([token], skip_special_tokens=skip) == theirs.decode([token], skip_special_tokens=skip)


@pytest.mark.parametrize("directory", [demo_path()], ids=["demo"])
def test_the_embedded_model_has_the_same(directory: Path) -> None:
    compare(directory)


def test_a_random_model_has_the_same(tmp_path: Path) -> None:
    compare(save_random_model(tmp_path / "random", RandomModel("random", 8, 8, 1, 2, 1, 400)))


def test_a_class_of_the_makers_own_adds_nothing_to_the_file(tmp_path: Path) -> None:
    directory = code_of_its_own(tmp_path)
    compare(directory, PreTrainedTokenizerFast.from_pretrained(directory))


@cache
def read(kind: Callable[[Path], Path], folder: Path) -> tuple[ModelTokenizer, Any]:
    directory = kind(folder / kind.__name__)
    return ModelTokenizer(directory), AutoTokenizer.from_pretrained(directory)


SPECIAL = st.sampled_from(
    ["<|begin|>", "<|end|>", "<|pad|>", "<|im_end|>", "<tool>", "<bos>", "<image>", "▁", " ", "\n"]
)
MIXED = st.lists(st.text(max_size=8) | SPECIAL, max_size=8).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=MIXED, kind=st.sampled_from(PLAIN))
def test_any_text_becomes_the_same_tokens_and_streams_back(
    text: str, kind: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    ours, theirs = read(kind, tmp_path_factory.getbasetemp())
    assert isinstance(ours.codec, FastCodec)
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == theirs.encode(text, add_special_tokens=False)
    stream = Detokenizer(Vocabulary(ours))
    told = "".join(stream.push(token) for token in ids) + stream.flush()
    assert told == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.integers(0, 330), max_size=20), kind=st.sampled_from(PLAIN))
def test_any_tokens_become_the_same_text(
    numbers: list[int], kind: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    ours, theirs = read(kind, tmp_path_factory.getbasetemp())
    for skip in (True, False):
        assert ours.decode(numbers, skip_special_tokens=skip) == theirs.decode(
            numbers, skip_special_tokens=skip, clean_up_tokenization_spaces=False
        )


@pytest.mark.parametrize("kind", OTHERS)
def test_what_transformers_makes_otherwise_is_left_to_it(kind: Callable[[Path], Path], tmp_path: Path) -> None:
    directory = kind(tmp_path)
    assert not isinstance(read_files(directory).codec, FastCodec)
    assert read_files(directory).special == read_by_transformers(directory).special


@pytest.mark.parametrize("lower", [True, False])
def test_berts_is_read_without_transformers_where_its_settings_agree(lower: bool, tmp_path: Path) -> None:
    """It has a part for each end of a text."""
    directory = bert(tmp_path, lower=lower, do_lower_case=lower)
    assert isinstance(read_files(directory).codec, FastCodec)
    compare(directory)
    for number, told in enumerate(({"do_lower_case": not lower}, {"strip_accents": True}, {"mask_token": None})):
        other = bert(tmp_path / str(number), lower=lower, **{"do_lower_case": lower, **told})
        assert not isinstance(read_files(other).codec, FastCodec)
        compare(other)


def test_the_template_is_that_of_its_own_file_or_the_one_called_default(tmp_path: Path) -> None:
    directory = qwen_2(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    assert not ModelTokenizer(directory).has_chat_template
    told = json.loads((directory / "tokenizer_config.json").read_text())
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ eos_token }}"}]
    (directory / "tokenizer_config.json").write_text(json.dumps(told | {"chat_template": several}))
    assert ModelTokenizer(directory).render_chat(messages) == "<|im_end|>"
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert ModelTokenizer(directory).render_chat(messages) == "hi"
    assert AutoTokenizer.from_pretrained(directory).apply_chat_template(messages, tokenize=False) == "hi"


def test_the_response_template_is_that_of_the_settings(tmp_path: Path) -> None:
    directory = qwen_2(tmp_path)
    assert ModelTokenizer(directory).response_template is None
    told = json.loads((directory / "tokenizer_config.json").read_text())
    response = {"start_anchor": "<|im_start|>", "fields": {"content": {}}}
    (directory / "tokenizer_config.json").write_text(json.dumps(told | {"response_template": response}))
    assert ModelTokenizer(directory).response_template == read_by_transformers(directory).response == response


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    directory = save(tmp_path, byte_level("<|end|>"), "llama", {"eos_token": 7})
    with pytest.raises(ModelError, match=r"settings beside tokenizer\.json .* cannot be read: .*download them again"):
        ModelTokenizer(directory)
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json has no tokenizer that can be read: .*download it again"):
        ModelTokenizer(directory)


def test_neither_transformers_nor_torch_is_imported_where_the_files_are_enough() -> None:
    code = (
        "import sys; from ferrule.engine.tokenizer.model import ModelTokenizer; from ferrule.model import demo_path;"
        "tokenizer = ModelTokenizer(demo_path());"
        "tokenizer.render_chat([{'role': 'user', 'content': 'hi'}]); tokenizer.decode(tokenizer.encode('hi'));"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"

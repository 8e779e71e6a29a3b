"""Tokenizers out of GGUF files: those of transformers, special tokens and ends, and what is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from ferrule.engine.gguf.pre_tokenizers import CUTS
from ferrule.engine.tokenizer.generation import generation_defaults
from ferrule.engine.tokenizer.model import ModelTokenizer
from ferrule.errors import ModelError

TEXTS = [
    "Hello world", " hello  world\n\n  12345 times", "I'll don't CAN'T x=1;y==2", "Größe, naïve ½ ①", "東京 한국 рус",
    "\t\tif (a) {\n\t\t\treturn 1;\r\n}", "🎉🎉 emoji", "", " ", "a\n", "HTTPServerError2024",
]  # fmt: skip
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def write(file: Path, *, model: str, tokens: list[str], types: list[int], **values: Any) -> Path:
    """A file of nothing but a tokenizer. ``values``: of ``tokenizer.ggml``, with their names' dots as ``__``."""
    writer = GGUFWriter(file, values.pop("architecture", "llama"))
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for key, add in (("pre", writer.add_tokenizer_pre), ("merges", writer.add_token_merges)):
        if key in values:
            add(values.pop(key))
    if "scores" in values:
        writer.add_token_scores(values.pop("scores"))
    for key, value in values.items():
        name = f"tokenizer.ggml.{key}" if "__" not in key else key.replace("__", ".")
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, float: writer.add_float32}
        add[type(value)](name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def byte_level(file: Path, pre: str, *special: str, **values: Any) -> Path:
    """A byte-level vocabulary, trained on these tests' texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=ALPHABET, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    state = json.loads(tokenizer.to_str())["model"]
    tokens = [*sorted(state["vocab"], key=state["vocab"].get), *special]
    types = [1] * (len(tokens) - len(special)) + [3] * len(special)
    merges = [" ".join(pair) for pair in state["merges"]]
    return write(file, model="gpt2", pre=pre, tokens=tokens, types=types, merges=merges, **values)


def pieces(file: Path, **values: Any) -> Path:
    """A SentencePiece vocabulary."""
    words = ["▁H", "el", "lo", "▁w", "or", "ld", "▁Hel", "▁Hello", "orld", "▁world", "▁▁", "ll", "▁t", "im", "es", "▁h"]
    words += ["ell", "▁hell", "▁hello", "12", "34"]
    letters = sorted({letter for text in TEXTS[:3] for letter in text if letter.isalnum()} | {"▁"})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *letters]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(words) + len(letters))]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))] + [-1e3 - rank for rank in range(len(letters))]
    roles = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return write(file, model="llama", tokens=tokens, types=types, scores=scores, **roles, **values)


def theirs(file: Path) -> Any:
    return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "gpt-4o", "tekken", "gpt-2"])
def test_texts_are_cut_and_merged_as_transformers_does(pre: str, tmp_path: Path) -> None:
    file = byte_level(tmp_path / "m.gguf", pre, "<|end|>", eos_token_id=320, add_bos_token=False)
    ours, other = ModelTokenizer(file), theirs(file)
    for text in TEXTS:
        found = ours.encode(text, add_special_tokens=False)
        if pre != "qwen2":  # which composes letters first, as its makers' tokenizer.json says
            assert found == other.encode(text, add_special_tokens=False), text
        assert ours.decode(found) == text


def test_pieces_are_merged_by_their_scores_as_transformers_does(tmp_path: Path) -> None:
    file = pieces(tmp_path / "m.gguf", add_bos_token=True)
    ours, other = ModelTokenizer(file), theirs(file)
    assert ours.encode("Hello world")[0] == 1
    for text in TEXTS:
        found = ours.encode(text, add_special_tokens=False)
        if text and not text.startswith(" "):  # there transformers' class differs from SentencePiece
            assert found == other.encode(text, add_special_tokens=False), text
        assert ours.decode(found) == text
    assert [ours.codec.inner.id_to_token(each) for each in ours.encode("Hello world")] == [
        "<s>",
        "▁Hello",
        "▁world",
    ]


def test_a_model_without_a_space_in_front_has_none(tmp_path: Path) -> None:
    ours = ModelTokenizer(pieces(tmp_path / "m.gguf", add_space_prefix=False, add_bos_token=False))
    assert [ours.codec.inner.id_to_token(each) for each in ours.encode("H world")] == ["H", "▁world"]
    assert ours.decode(ours.encode(" Hello")) == " Hello"


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=30), pre=st.sampled_from(sorted({cut: name for name, cut in CUTS.items()}.values())))
def test_every_text_comes_back(text: str, pre: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / f"{pre}.gguf"
    if not file.exists():
        byte_level(file, pre, add_bos_token=False)
    tokenizer = ModelTokenizer(file)
    found = tokenizer.decode(tokenizer.encode(text))
    if CUTS[pre].composed:
        text, found = (str(tokenizer.codec.inner.normalizer.normalize_str(each)) for each in (text, found))
    assert found == text


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'m", " 12345", "\n\n"]),
        ("llama-bpe", ["I", "'m", " ", "123", "45", "\n\n"]),
        ("qwen2", ["I", "'m", " ", "1", "2", "3", "4", "5", "\n\n"]),
        ("starcoder", ["I", "'m", " ", "1", "2", "3", "4", "5", "\n\n"]),
        ("deepseek-v3", ["I", "'m", " ", "123", "45", "\n\n"]),
        ("deepseek-coder", ["I", "'", "m", " ", "1", "2", "3", "4", "5", "\n", "\n"]),
        ("deepseek-llm", ["I", "'", "m", " ", "1", "2", "3", "4", "5", "\n", "\n"]),
    ],
)
def test_texts_are_cut_by_the_name_in_the_file(pre: str, pieces: list[str]) -> None:
    text = "I'm 12345\n\n"
    cut = CUTS[pre]
    steps = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in cut.expressions]
    found = [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]
    assert found == pieces


def test_special_tokens_and_ends_are_those_of_the_file(tmp_path: Path) -> None:
    special = ("<|begin|>", "<|eot_id|>", "<|end_of_text|>", "<|im_end|>", "<|start|>")
    file = byte_level(
        tmp_path / "m.gguf",
        "llama-bpe",
        *special,
        bos_token_id=320,
        eos_token_id=322,
        eot_token_id=324,
        tokenizer__chat_template="{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}",
        general__sampling__temp=0.6,
        general__sampling__top_k=20,
    )
    tokenizer = ModelTokenizer(file)
    ids = tokenizer.encode("hello<|eot_id|>")
    assert (ids[0], ids[-1]) == (320, 321), "llama-bpe begins texts where the file does not say"
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.eos_token_id == 322
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<|begin|>[hi]"
    sampling, _ = generation_defaults(file)
    assert tokenizer.end_tokens == {321, 322, 323, 324}, "named ones, and control tokens that are known for it"
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (pytest.approx(0.6), 20, 1.0)


def test_a_message_of_harmony_is_not_the_end(tmp_path: Path) -> None:
    file = byte_level(tmp_path / "m.gguf", "gpt-4o", "<|return|>", "<|call|>", "<|end|>", eos_token_id=320)
    assert ModelTokenizer(file).end_tokens == {320, 321}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "new-thing"}, "cuts text in the way 'new-thing', which is not known here; use the directory of"),
        ({"model": "rwkv"}, "of the kind 'rwkv', which is not run here (only gpt2, llama, gemma); use the directory"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges holds 'ab', which is no pair; download it again"),
        ({"types": [1]}, "tokenizer.ggml.token_type has 1 entries for 2 tokens"),
        ({"model": "llama", "scores": [1.0]}, "tokenizer.ggml.scores has 1 entries for 2 tokens"),
        ({"model": "llama"}, "lacks tokenizer.ggml.scores; download it again"),
        ({"tokens": [], "types": []}, "holds no tokenizer; use the directory of the model's safetensors"),
        ({"general__sampling__temp": -1.0}, "general.sampling cannot be: temperature cannot be -1.0"),
    ],
)
def test_what_is_not_known_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    told = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b"], "types": [1, 1], "merges": ["a b"], **changes}
    if told["model"] == "llama":
        del told["merges"]
    if not told["tokens"]:
        told["tokens"], told["types"] = ["x"], [1]
        file = GGUFWriter(tmp_path / "m.gguf", "llama")
        file.write_header_to_file()
        file.write_kv_data_to_file()
        file.close()
    else:
        write(tmp_path / "m.gguf", **told)
    read = generation_defaults if "general" in message else ModelTokenizer
    with pytest.raises(ModelError) as caught:
        read(tmp_path / "m.gguf")
    assert message in str(caught.value)
    assert str(tmp_path / "m.gguf") in str(caught.value)

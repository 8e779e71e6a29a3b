"""Checks of a model directory: what is refused before anything is loaded, and what needs no remote code."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_parity import TOKENS, forward, plan_for, run_split
from thread_group import ThreadGroup
from tiny_models import make

from ferrule.engine.rank.model import ShardedModel
from ferrule.engine.source import called, read_config
from ferrule.engine.tokenizer.model import ModelTokenizer
from ferrule.errors import ModelError
from ferrule.model import demo_path


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"layer_types": ["chunked_attention", "full_attention"] * 2}, "but no attention_chunk_size"),
        ({"attn_temperature_tuning": True}, "by a token's place"),
    ],
)
def test_what_only_llama_4_does_is_refused_elsewhere_before_anything_is_loaded(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 4, **changes}))
    with pytest.raises(ModelError, match=rf"\(llama\) .*{why}"):
        read_config(tmp_path)


def test_a_model_type_whose_class_is_another_ones_needs_no_code_of_its_own(tmp_path: Path) -> None:
    make("deepseek_v3", tmp_path / "original")
    directory = Path(shutil.copytree(tmp_path / "original", tmp_path / "copy"))
    config = json.loads((directory / "config.json").read_text())
    code = {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}
    (directory / "config.json").write_text(json.dumps(config | {"model_type": "kimi_k2", "auto_map": code}))
    own, theirs = (read_config(each).to_dict() for each in (directory, tmp_path / "original"))
    assert own | {"_name_or_path": ""} == theirs | {"_name_or_path": ""}
    plan, ids = plan_for(directory, 2, 1), torch.randint(3, 131, (1, TOKENS))

    def body(model: ShardedModel, world: ThreadGroup) -> torch.Tensor | None:
        return forward(model, world, plan, ids, 0)

    found, expected = run_split(directory, plan, body), run_split(tmp_path / "original", plan, body)
    assert torch.equal(found[0], expected[0])


def test_a_tokenizer_that_is_all_in_its_file_needs_no_code_of_its_own(tmp_path: Path) -> None:
    for file in demo_path().glob("*token*"):
        shutil.copy(file, tmp_path)
    told = json.loads((tmp_path / "tokenizer_config.json").read_text())
    changed = told | {
        "tokenizer_class": "TheirTokenizer",
        "auto_map": {"AutoTokenizer": ["theirs.TheirTokenizer", None]},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(changed))
    found, plain = ModelTokenizer(tmp_path), ModelTokenizer(demo_path())
    text = "Once upon a time"
    assert found.encode(text) == plain.encode(text)
    assert found.decode(found.encode(text)) == plain.decode(plain.encode(text))


def ranks_of(*words: bytes) -> bytes:
    """A tiktoken.model: all bytes, and the ``words``, each of two that come before it."""
    tokens = [bytes([one]) for one in range(256)] + list(words)
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def test_a_tokenizer_of_tiktoken_needs_no_code_of_its_own(tmp_path: Path) -> None:
    words = (b"he", b"ll", b"hell", b"hello", b" w", b"12", b"123", "中".encode()[:2], "中".encode())
    (tmp_path / "tiktoken.model").write_bytes(ranks_of(*words))
    first = 256 + len(words)
    settings = {
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "tokenizer_class": "TikTokenTokenizer",
        "added_tokens_decoder": {
            str(first): {"content": "[BOS]", "special": True},
            str(first + 3): {"content": "<|im|>"},
        },
        "bos_token": "[BOS]",
        "eos_token": {"content": "<|im|>"},
        "chat_template": "{% for m in messages %}<|im|>{{ m.content }}{% endfor %}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = ModelTokenizer(tmp_path)
    assert found.encode("hello") == [259]
    assert found.encode("hello wo") == [259, 260, ord("o")]
    assert found.encode("1234") == [262, ord("4")]  # numbers are split after three digits
    assert found.encode("a中") == [ord("a"), 264]  # Han is no part of a word before it
    assert found.encode("[BOS]hello<|im|>") == [first, 259, first + 3]
    assert found.eos_token_id == first + 3
    assert found.encode(f"<|reserved_token_{first + 1}|>") == [first + 1]
    for text in ("hello wörld's 中文\n\n 12345  x", "HeLLo'S é"):
        assert found.decode(found.encode(text)) == text
    assert found.render_chat([{"role": "user", "content": "hello"}]) == "<|im|>hello"
    (tmp_path / "tiktoken.model").write_bytes(b"no ranks")
    with pytest.raises(ModelError, match=r"tiktoken\.model cannot be read as a tokenizer.*download it again"):
        ModelTokenizer(tmp_path)
    settings["auto_map"] = {"AutoTokenizer": ["tokenization_new.Tokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=r"tokenization_new\.Tokenizer.*not run; put a tokenizer\.json beside it"):
        ModelTokenizer(tmp_path)


def test_a_model_of_the_hub_is_called_by_its_id(tmp_path: Path) -> None:
    assert called("acme/tiny-1b", tmp_path / "snapshots" / "0123456789abcdef") == "acme/tiny-1b"
    assert called(str(tmp_path), tmp_path) == tmp_path.name

"""The embedded model as it is shipped: its files, its chat template and that it answers."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ferrule.errors import ModelError
from ferrule.model import demo_path, embedded

CHAT = [
    {"role": "system", "content": "Be concise."},
    {"role": "user", "content": "  What is the os module?\n"},
    {"role": "assistant", "content": "It talks to the operating system."},
    {"role": "user", "content": "Thanks"},
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(demo_path())


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(demo_path(), dtype=torch.float32).eval()


def replies(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: Iterable[str]) -> list[str]:
    """The greedy answers as they end by themselves; one that does not end within 160 tokens fails the test."""
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": one}], add_generation_prompt=True, tokenize=False)
        for one in questions
    ]
    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=160, do_sample=False, temperature=None, top_p=None)
    new = out[:, inputs["input_ids"].shape[1] :]
    assert (new == tokenizer.eos_token_id).any(dim=1).all()
    return tokenizer.batch_decode(new, skip_special_tokens=True)


def test_files_are_small_and_complete() -> None:
    sizes = {path.name: path.stat().st_size for path in demo_path().iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"} <= set(
        sizes
    )
    assert sizes["model.safetensors"] <= 8_000_000
    assert sum(sizes.values()) <= 9_000_000


def test_weights_are_bfloat16_and_tied() -> None:
    with safe_open(demo_path() / "model.safetensors", "pt") as weights:
        tensors = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
        assert {tensor.get_dtype() for tensor in tensors.values()} == {"BF16"}
        count = sum(torch.Size(tensor.get_shape()).numel() for tensor in tensors.values())
    assert 2_000_000 <= count <= 4_000_000
    assert "lm_head.weight" not in tensors


@pytest.mark.parametrize("ranks", [2, 4])
def test_shape_divides_over_ranks(ranks: int) -> None:
    config = json.loads((demo_path() / "config.json").read_text())
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size", "hidden_size"):
        assert config[name] % ranks == 0, name
    assert config["num_hidden_layers"] >= ranks


def test_generation_settings_stop_at_the_end_token(tokenizer: PreTrainedTokenizerBase) -> None:
    settings = GenerationConfig.from_pretrained(demo_path())
    assert settings.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|end|>")
    assert settings.do_sample
    assert settings.temperature == pytest.approx(0.7)
    assert settings.top_p == pytest.approx(0.9)


def test_chat_template_renders_every_role(tokenizer: PreTrainedTokenizerBase) -> None:
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|system|>Be concise.<|end|><|user|>What is the os module?<|end|>"
        "<|assistant|>It talks to the operating system.<|end|><|user|>Thanks<|end|><|assistant|>"
    )
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text


def test_chat_template_takes_text_parts_and_developer_messages(tokenizer: PreTrainedTokenizerBase) -> None:
    parts = [{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}]
    assert tokenizer.apply_chat_template(parts, tokenize=False) == "<|system|>Be brief.<|end|>"


@pytest.mark.parametrize(
    "message",
    [{"role": "tool", "content": "4"}, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
)
def test_chat_template_refuses_what_the_model_cannot_read(
    tokenizer: PreTrainedTokenizerBase, message: dict[str, object]
) -> None:
    with pytest.raises(Exception, match="This model"):
        tokenizer.apply_chat_template([message], tokenize=False)


@pytest.mark.parametrize("text", ["def f(x):\n    return x  # µ → 日本 🐍\n", "", " spaces  and\ttabs ", "\x00\x7f"])
def test_tokenizer_round_trips_any_text(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.slow
def test_answers_to_the_point_and_stops(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    expected = {
        "What does json.dumps do?": ["json.dumps", "JSON"],
        "Hello": ["demonstration", "Python"],
        "Who are you?": ["Ferrule", "demonstration"],
        "What is the os module?": ["`os`", "operating system"],
    }
    for text, words in zip(replies(model, tokenizer, expected), expected.values(), strict=True):
        assert all(word in text for word in words), text


@pytest.mark.slow
def test_writes_a_longer_answer_and_stops(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    [text] = replies(model, tokenizer, ["Write about Python dictionaries"])
    assert "key" in text
    assert len(text) > 300


def test_plain_text_is_likely(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer(
        "Return a list of the substrings in the string, using sep as the separator string.", return_tensors="pt"
    )
    with torch.inference_mode():
        loss = model(**ids, labels=ids["input_ids"]).loss
    assert loss.exp() < 30  # an untrained model: about the size of the vocabulary, 3072


def test_a_package_without_the_model_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "files", lambda _: tmp_path)
    with pytest.raises(ModelError, match="reinstall ferrule"):
        demo_path()

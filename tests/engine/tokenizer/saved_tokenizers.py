"""Model directories that hold nothing but a small tokenizer, in the ways that published models save theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "Hello world", " hello  world\n\n  12345 times", "I'll don't CAN'T x=1;y==2", "Größe, nai\u0308ve ½ ①",
    "東京 한국 рус", "\t\tif (a) {\n\t\t\treturn 1;\r\n}", "🎉🎉 emoji 👩\u200d👩\u200d👧", "", " ", "a\n",
    "HTTPServer2024", "<|end|>", "x<tool>y", "\x00\x7f", "  <|begin|> a <|end|>  b<|pad|>", "[INST] hi [/INST]",
    "<s>hi</s>", "<mask>▁<unk>", "<image>a<|im_end|>\n<|extra|>",
]  # fmt: skip
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""That of Qwen 2."""


def token(content: str, **told: Any) -> dict[str, Any]:
    """As tokenizer_config.json has them."""
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False} | told


def byte_level(*special: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    return tokenizer


def pieces(*, prefix: bool) -> Tokenizer:
    """As SentencePiece's are converted."""
    letters = sorted({letter for text in TEXTS for letter in text if letter.isalnum()} | set("▁<>|[]/"))
    merges = [("▁", "h"), ("▁h", "e"), ("l", "l"), ("▁he", "ll"), ("▁hell", "o"), ("▁", "w"), ("▁w", "o"), ("▁", "▁")]
    words = ["<unk>", "<s>", "</s>", "<pad>", "<eos>", "<bos>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: number for number, word in enumerate([*words, *letters, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    spaced = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaced]) if prefix else spaced
    if not prefix:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    last = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    tokenizer.add_special_tokens(words[:7])
    return tokenizer


def begins_with(tokenizer: Tokenizer, text: str) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{text} $A", pair=f"{text} $A {text}:1 $B:1", special_tokens=[(text, tokenizer.token_to_id(text))]
    )
    return tokenizer


def save(directory: Path, tokenizer: Tokenizer, model_type: str, told: dict[str, Any], **files: Any) -> Path:
    """``files``: other JSON files, by their names without suffix."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    everything = {"config": {"model_type": model_type}, "tokenizer_config": told, **files}
    for name, content in everything.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def llama_3(directory: Path) -> Path:
    tokenizer = begins_with(byte_level("<|begin|>", "<|end|>", "<|reserved|>"), "<|begin|>")
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding()
    first = tokenizer.token_to_id("<|begin|>")
    added = {
        str(first + n): token(text, special=True) for n, text in enumerate(("<|begin|>", "<|end|>", "<|reserved|>"))
    }
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    return save(directory, tokenizer, "llama", told | {"added_tokens_decoder": added, "model_max_length": 131072})


def qwen_2(directory: Path) -> Path:
    tokenizer = byte_level("<|end|>", "<|im_end|>")
    tokenizer.normalizer = normalizers.NFC()
    first = tokenizer.token_to_id("<|end|>")
    added = {
        str(first): token("<|end|>", special=True),
        str(first + 1): token("<|im_end|>", special=True),
        str(first + 2): token("<tool>", special=False),  # which tokenizer.json lacks
    }
    told = {
        "tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "bos_token": None, "unk_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|end|>", "additional_special_tokens": ["<|im_end|>", "<|extra|>"],
        "added_tokens_decoder": added, "split_special_tokens": False,
    }  # fmt: skip
    return save(directory, tokenizer, "qwen2", told)


def qwen_3(directory: Path) -> Path:
    qwen_2(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return directory


def deepseek(directory: Path) -> Path:
    tokenizer = begins_with(byte_level("<|begin|>", "<|end|>"), "<|begin|>")
    told = {
        "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False, "add_eos_token": True, "legacy": True,
        "bos_token": {"__type": "AddedToken", **token("<|begin|>", normalized=True)},
        "eos_token": {"__type": "AddedToken", **token("<|end|>", normalized=True)},
        "pad_token": {"__type": "AddedToken", **token("<|pad|>", lstrip=True)}, "unk_token": None,
    }  # fmt: skip
    return save(directory, tokenizer, "deepseek_v3", told)


def legacy(directory: Path) -> Path:
    """As transformers 4.30 and older saved them."""
    tokenizer = byte_level("<|end|>")
    special = {"eos_token": token("<|end|>"), "pad_token": "<|pad|>", "additional_special_tokens": ["<|extra|>"]}
    added = {"<tool>": tokenizer.get_vocab_size(), "<|pad|>": tokenizer.get_vocab_size() + 1}
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<tool>", "clean_up_tokenization_spaces": True}
    return save(directory, tokenizer, "llama", told, special_tokens_map=special, added_tokens=added)


def named(directory: Path) -> Path:
    """With tokens whose parts only this model has, and special tokens that are cut as text is."""
    told = {
        "tokenizer_class": "TokenizersBackend", "backend": "tokenizers", "eos_token": "<|end|>",
        "image_token": "<image>", "extra_special_tokens": {"tool_token": "<tool>"}, "split_special_tokens": True,
    }  # fmt: skip
    return save(directory, byte_level("<|end|>", "<image>", "<tool>"), "llama", told)


def gemma(directory: Path) -> Path:
    tokenizer = begins_with(pieces(prefix=False), "<bos>")
    told = {
        "tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
        "unk_token": "<unk>", "mask_token": "<mask>", "extra_special_tokens": ["<image>"],
    }  # fmt: skip
    return save(directory, tokenizer, "gemma2", told)


def code_of_its_own(directory: Path) -> Path:
    """Read as transformers would read it if no class were named."""
    told = {"tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": [None, "theirs.Theirs"]}, "eos_token": "<eos>"}
    return save(directory, pieces(prefix=True), "llama", told)


def llama_2(directory: Path) -> Path:
    """transformers' class puts the space in front in another way than ``tokenizer.json`` says."""
    tokenizer = begins_with(pieces(prefix=True), "<s>")
    told = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return save(directory, tokenizer, "llama", told)


def without_end(directory: Path) -> Path:
    """A tokenizer in which the class's default counts."""
    return save(directory, byte_level("<|endoftext|>"), "qwen2_moe", {"tokenizer_class": "Qwen2Tokenizer"})


def bert(directory: Path, *, lower: bool = True, **told: Any) -> Path:
    """As all-MiniLM is saved: filled up and cut."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted({letter for text in TEXTS for letter in text.lower() + text if letter.isalnum()})
    words = [*special, *letters, *(f"##{letter}" for letter in letters), "hello", "world", "##llo", "'", "=", ";"]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece("##")
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(special)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    roles = {f"{each.strip('[]').lower()}_token": each for each in special}
    return save(directory, tokenizer, "bert", {"tokenizer_class": "BertTokenizer", **roles, **told})


PLAIN: list[Callable[[Path], Path]] = [llama_3, qwen_2, qwen_3, deepseek, legacy, named, gemma]
OTHERS: list[Callable[[Path], Path]] = [llama_2, without_end]

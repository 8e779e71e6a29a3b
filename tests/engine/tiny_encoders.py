"""Tiny encoders with random weights, made from transformers' own configurations, and files beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_models import hash_of
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel

COMMON: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "pad_token_id": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "camembert": {},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4},
    "electra": {"embedding_size": 24},
    "eurobert": {"num_key_value_heads": 2},
    "gte": {},
    "modernbert": {"local_attention": 8, "cls_token_id": 2, "sep_token_id": 3, "eos_token_id": 3, "bos_token_id": 2},
    "mpnet": {},
    "nomic_bert": {},
    "roberta": {},
    "xlm-roberta": {},
    "gemma3_text": {
        "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 10, "use_bidirectional_attention": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8, "is_causal": False, "tie_word_embeddings": True},
}  # fmt: skip
"""Those of `ferrule.model.families.encoders`, and decoders that were made encoders, as EmbeddingGemma was."""
WORDS = ["a", "fox", "dog", "jumps", "over", "the", "lazy", "quick", "brown", "##s", "##ed", "run", "light", "sleep"]
SPECIAL = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]


def make_encoder(name: str, directory: Path, auto: Any = AutoModel, **changes: Any) -> Path:
    """Save a random encoder of family ``name``, whose every parameter is drawn at random, as a model of class
    ``auto``."""
    shape = {key: value for key, value in COMMON.items() if name != "distilbert" or not key.startswith(("hid", "num"))}
    config = AutoConfig.for_model(name, **{**shape, **FAMILIES[name], **changes})
    torch.manual_seed(hash_of(name))
    model = auto.from_config(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            centre = 1.0 if "norm" in key.lower() and key.endswith("weight") else 0.0
            parameter.copy_(centre + 0.1 * torch.randn(parameter.shape))
    model.save_pretrained(directory)
    return directory


def add_tokenizer(directory: Path) -> None:
    """Write a WordPiece tokenizer, which begins a text with ``[CLS]`` and ends it with ``[SEP]``."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece("##")
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    roles = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "cls", "sep", "mask")}
    write(directory / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **roles})


def add_modules(directory: Path, pooling: str, *dense: tuple[int, int, str], longest: int | None = None) -> None:
    """Write the files of sentence-transformers: ``pooling`` by one of its names, ``dense`` layers of so many inputs,
    outputs and with an activation, and a last module that gives vectors length 1."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), "Normalize"]
    folders = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    listed = [
        {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, folder) in enumerate(zip(kinds, folders, strict=True))
    ]
    write(directory / "modules.json", listed)
    write(directory / folders[1] / "config.json", {f"pooling_mode_{pooling}": True, "pooling_mode_cls": False})
    for folder, (inputs, outputs, activation) in zip(folders[2:], dense, strict=False):
        told = {"in_features": inputs, "out_features": outputs, "bias": True}
        write(directory / folder / "config.json", told | {"activation_function": f"torch.nn.modules.x.{activation}"})
        torch.manual_seed(outputs)
        tensors = {"linear.weight": torch.randn(outputs, inputs), "linear.bias": torch.randn(outputs)}
        save_file(tensors, directory / folder / "model.safetensors")
    if longest is not None:
        write(directory / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})


def write(file: Path, told: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(told))

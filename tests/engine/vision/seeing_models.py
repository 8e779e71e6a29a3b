"""Tiny models that take images, with random weights, and image processors of their families."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_models import COMMON, EXPERTS
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ferrule.engine.images.processor import Order, Read, load, read
from ferrule.engine.images.prompts import ImagePrompts, order_of, told_of
from ferrule.engine.tokenizer.model import ModelTokenizer
from ferrule.engine.types import ImagePrompt

IMAGE = 130
"""Id of the placeholder: the last one of the vocabulary."""

_TEXT: dict[str, Any] = {**COMMON, "head_dim": 8, "num_hidden_layers": 4}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
_QWEN = {"depth": 3, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "out_hidden_size": 64, "intermediate_size": 48}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "text_config": {**_TEXT, "rope_parameters": _MROPE},
        "vision_config": {**_QWEN, "window_size": 16, "fullatt_block_indexes": [1]},
        "vision_start_token_id": 127,
        "vision_end_token_id": 128,
        "video_token_id": 129,
    },
    "qwen2_vl": {
        "text_config": {**_TEXT, "rope_parameters": _MROPE},
        "vision_config": {
            "depth": 2, "embed_dim": 32, "num_heads": 2, "patch_size": 4, "hidden_size": 64, "mlp_ratio": 2,
        },
        "vision_start_token_id": 127,
        "vision_end_token_id": 128,
        "video_token_id": 129,
    },
    "qwen3_vl": {
        "text_config": {**_TEXT, "rope_parameters": {**_MROPE, "mrope_interleaved": True}},
        "vision_config": {**_QWEN, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
        "vision_start_token_id": 127,
        "vision_end_token_id": 128,
        "video_token_id": 129,
    },
    "qwen3_vl_moe": {
        "text_config": {
            **_TEXT, **EXPERTS, "rope_parameters": {**_MROPE, "mrope_interleaved": True},
            "num_experts": 4, "mlp_only_layers": [1], "moe_intermediate_size": 24,
        },
        "vision_config": {**_QWEN, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        "vision_start_token_id": 127,
        "vision_end_token_id": 128,
        "video_token_id": 129,
    },
    "gemma3": {
        "text_config": {
            **_TEXT,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "query_pre_attn_scalar": 8,
        },
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 32, "patch_size": 4, "vision_use_head": False,
        },
        "mm_tokens_per_image": 16,
        "boi_token_index": 127,
        "eoi_token_index": 128,
    },
    "mistral3": {
        "text_config": {**_TEXT, "model_type": "mistral", "sliding_window": None},
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "head_dim": 16, "image_size": 64, "patch_size": 4,
        },
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
    },
}  # fmt: skip


_QWEN_IMAGES = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 1024})
PROCESSORS = {
    "qwen2_5_vl": _QWEN_IMAGES,
    "qwen2_vl": _QWEN_IMAGES,
    "qwen3_vl": _QWEN_IMAGES,
    "qwen3_vl_moe": _QWEN_IMAGES,
    "gemma3": Gemma3ImageProcessorPil(size={"height": 32, "width": 32}),
    "mistral3": PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size=4),
}


_QWEN_TOKENS = {127: "<|vision_start|>", 128: "<|vision_end|>", IMAGE: "<|image_pad|>"}
SPECIAL = {
    "qwen2_5_vl": _QWEN_TOKENS,
    "qwen2_vl": _QWEN_TOKENS,
    "qwen3_vl": _QWEN_TOKENS,
    "qwen3_vl_moe": _QWEN_TOKENS,
    "gemma3": {124: "\n\n", 127: "<start_of_image>", 128: "<end_of_image>", IMAGE: "<image_soft_token>"},
    "mistral3": {125: "[IMG_BREAK]", 126: "[IMG_END]", IMAGE: "[IMG]"},
}


def make(name: str, directory: Path, **changes: Any) -> Path:
    """Save a random model of family ``name`` into ``directory`` and give it back."""
    told = {**CONFIGS[name], **changes}
    config = AutoConfig.for_model(name, image_token_id=IMAGE, tie_word_embeddings=False, **told)
    config.architectures = None
    torch.manual_seed(len(name))
    model = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            centre = 1.0 if "norm" in key and key.endswith("weight") else 0.0
            parameter.copy_(centre + 0.08 * torch.randn(parameter.shape))
    model.save_pretrained(directory)
    file = directory / "model.safetensors"
    stored = load_file(file)
    turned = {key: each.transpose(1, 2).contiguous() for key, each in stored.items() if ".experts." in key}
    save_file(stored | turned, file, {"format": "pt"})  # as they are published
    PROCESSORS[name].save_pretrained(directory)
    save_tokenizer(directory, SPECIAL[name])
    return directory


def save_tokenizer(directory: Path, special: dict[int, str]) -> None:
    """Words ``w0``, ``w1`` … and the ``special`` tokens, each with its id."""
    words = {special.get(number, f"w{number}"): number for number in range(COMMON["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_tokens([AddedToken(text, special=text != "\n\n") for text in special.values()])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w2"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def image(height: int, width: int, seed: int, kind: str = "PNG") -> bytes:
    """A file of noise."""
    file = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, kind)
    return file.getvalue()


class Direct:
    """`ferrule.engine.images.prompts.Reader` in this process."""

    def __init__(self, order: Order) -> None:
        self._order, self._processor = order, load(order)

    async def read(self, file: bytes) -> Read:
        return read(self._processor, file, self._order)


def image_prompts(directory: Path) -> ImagePrompts:
    told = told_of(directory)
    assert told is not None
    return ImagePrompts(told, ModelTokenizer(directory), Direct(order_of(directory, told, "float32")))


def text_of(prompts: ImagePrompts, parts: Sequence[int | bytes]) -> str:
    """Words, and markers of the images between them."""
    return " ".join(f"w{part}" if isinstance(part, int) else prompts.marker for part in parts)


def prompt_of(directory: Path, parts: Sequence[int | bytes]) -> ImagePrompt:
    """Tokens, and the images between them."""
    prompts = image_prompts(directory)
    files = [part for part in parts if isinstance(part, bytes)]
    return asyncio.run(prompts.read(text_of(prompts, parts), files, 200, add_special_tokens=False))

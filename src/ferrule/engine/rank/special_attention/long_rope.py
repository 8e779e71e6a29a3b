"""LongRoPE (Ding et al. 2024): rotary frequencies by the length of each sequence of a batch.

A model has two sets of frequencies: for sequences no longer than what it was first trained with, and for longer ones.
transformers chooses one for a whole forward pass, by its last position; here each sequence has its own, chosen when it
starts by all its tokens that are known then. One that grows beyond the border is computed again with the others
(`Scheduler`), as transformers' Phi-3 does: so every token is made of keys that all have the same frequencies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ferrule.engine.rank.kv_cache import KVCache
from ferrule.errors import ModelError

KIND = "longrope"


def attach(base: nn.Module, cache: KVCache) -> None:
    """Let rotary modules of ``base`` ask ``cache`` which of its sequences are long ones. Raises `ModelError` where one
    computes frequencies in its own way."""
    for module in base.modules():
        if getattr(module, "rope_type", None) == KIND:
            _by_sequence(module, cache)


def _by_sequence(module: Any, cache: KVCache) -> None:
    plain = getattr(type(module).forward, "__wrapped__", None)  # without the choice by the last position
    if plain is None or not isinstance(getattr(module, "original_inv_freq", None), Tensor):
        raise ModelError(
            f"{type(module).__name__} chooses its LongRoPE frequencies in its own way, which is not run here"
        )
    border = cache.border = int(module.config.rope_parameters["original_max_position_embeddings"])
    frequencies: list[Tensor] = []  # of short sequences, of long ones

    def forward(x: Tensor, position_ids: Tensor, *args: Any, **given: Any) -> Any:
        if not frequencies:
            long, _ = ROPE_INIT_FUNCTIONS[KIND](module.config, seq_len=border + 1)
            frequencies.extend((module.original_inv_freq, long.to(x.device)))
        parts = []
        for segment in cache.segments:
            module.inv_freq = frequencies[segment.cache.long]
            parts.append(plain(module, x, position_ids[:, segment.start : segment.stop], *args, **given))
        if isinstance(parts[0], Tensor):
            return torch.cat(parts, dim=1)
        return tuple(torch.cat(each, dim=1) for each in zip(*parts, strict=True))

    module.forward = forward

"""Tokens of stock mlx-lm: a random Llama that it cuts into slices itself, by its ``Model.shard``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models import llama

from ferrule.bench.random_model import RandomModel

SHAPES = {
    4_000_000: RandomModel("llama-4m-random", 256, 512, 4, 8, 4, 4096),
    60_000_000: RandomModel("llama-60m-random", 512, 1536, 12, 8, 4, 16000),
}
"""By the number of their parameters, roughly."""

_PROMPT = 16
_TOKENS = {4_000_000: 64, 60_000_000: 16}


def new_decoder(parameters: int, group: Any) -> Callable[[], float]:
    """A function that has the ranks of ``group`` decode some tokens, and gives the microseconds of each."""
    shape, tokens = SHAPES[parameters], _TOKENS[parameters]
    mx.random.seed(0)
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            intermediate_size=shape.intermediate,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_value_heads,
            rms_norm_eps=1e-6,
            vocab_size=shape.vocabulary,
            tie_word_embeddings=False,
        )
    )
    model.shard(group)
    mx.eval(model.parameters())
    prompt = mx.arange(3, 3 + _PROMPT)

    def decode() -> float:
        begin = 0.0
        for number, _ in enumerate(generate_step(prompt, model, max_tokens=tokens)):
            if number == 0:  # what comes before is the prompt
                begin = time.perf_counter()
        return (time.perf_counter() - begin) * 1e6 / (tokens - 1)

    return decode

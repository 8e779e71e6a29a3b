"""A rank of stock mlx-lm: a random tiny model by itself, and split by ``tensor`` or ``pipeline``, says the same."""

from __future__ import annotations

import sys
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models import llama, qwen2

TOKENS = 24


def new_model(kind: str) -> Any:
    """A Llama, which mlx-lm cuts into slices, or a Qwen2, which it cuts into stages; alike on all ranks."""
    mx.random.seed(7)
    module = llama if kind == "tensor" else qwen2
    made = module.Model(
        module.ModelArgs(
            model_type=kind,
            hidden_size=64,
            num_hidden_layers=4,
            intermediate_size=128,
            num_attention_heads=8,
            num_key_value_heads=4,
            rms_norm_eps=1e-6,
            vocab_size=512,
            tie_word_embeddings=False,
        )
    )
    mx.eval(made.parameters())
    return made


def tokens(model: Any) -> list[int]:
    prompt = mx.array([5, 99, 311, 17, 42])
    return [int(token) for token, _ in generate_step(prompt, model, max_tokens=TOKENS)]


def main(kind: str) -> None:
    mx.set_default_device(mx.cpu)
    wanted = tokens(new_model(kind))
    assert len(set(wanted)) > 2, wanted
    group = mx.distributed.init(strict=True, backend="mpi")
    model = new_model(kind)
    if kind == "tensor":
        model.shard(group)
    else:
        model.model.pipeline(group)
    mx.eval(model.parameters())
    got = tokens(model)
    assert got == wanted, (got, wanted)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        main(each)

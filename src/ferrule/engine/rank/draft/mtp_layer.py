"""The input of a layer for multi-token prediction, which a model of one layer has more than others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ferrule.model.mtp import ONE_LAYER


class MtpInput:
    """What enters the layer: a linear layer's result of the token's embedding and the hidden state before it, after a
    norm of each, side by side in this order: as transformers' ``MtpLayer`` has it, and vLLM's and SGLang's models of
    DeepSeek-V3 and GLM-4.5. (The report's formula 21 has them the other way round; the weights are stored so.)

    ``hidden``: that state for each token, (1, tokens, width): what the model's last norm gave of the token before, or
    for a guess what the last norm of this layer gave.
    """

    hidden: Tensor

    def __init__(self, layer: Any) -> None:
        layer.register_forward_pre_hook(self._join)

    def _join(self, layer: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        embedded, *others = given
        side_by_side = torch.cat((layer.enorm(embedded), layer.hnorm(self.hidden)), dim=-1)
        return layer.eh_proj(side_by_side), *others


def with_one_layer(config: Any) -> Any:
    """``config``, which is changed, for a model whose only layer is that for multi-token prediction."""
    for name, value in ONE_LAYER.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    return config


def add_input(layer: Any, width: int, dtype: torch.dtype) -> MtpInput:
    """Give ``layer`` (without memory) the modules that make its input, by the names that checkpoints have for them."""
    norm: Any = layer.input_layernorm
    eps = float(getattr(norm, "variance_epsilon", None) or norm.eps)
    with torch.device("meta"):
        layer.enorm, layer.hnorm = (type(norm)(width, eps=eps).to(dtype) for _ in range(2))
        layer.eh_proj = nn.Linear(2 * width, width, bias=False, dtype=dtype)
    return MtpInput(layer)

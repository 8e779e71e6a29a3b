"""Logits of several sequences, on whatever device they are: penalties, biases, and the probabilities to report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ferrule.engine.types import SamplingParams

Upload = Callable[[Tensor], Tensor]
_NEVER = np.float32(-np.inf)
_BIASES = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1, 0, _NEVER)
"""(256, 8): by a byte of a mask, what is added to the logits of its eight tokens."""
LOWEST_LOGPROB = -9999.0
"""Reported log-probability of a token that cannot come, as OpenAI's API does: JSON has no infinities."""


class Context(NamedTuple):
    """``tokens`` of a sequence, the first ``prompt`` of which were given; and how it wants the next one.
    ``mask``: a bit for each token, from the lowest one of a byte on: whether its grammar allows it."""

    params: SamplingParams
    tokens: Sequence[int]
    prompt: int
    mask: NDArray[np.uint8] | None = None


class Changes:
    """Numbers for single logits: by row and token."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.tokens: list[int] = []
        self.values: list[float] = []

    def add(self, row: int, token: int, value: float) -> None:
        self.rows.append(row)
        self.tokens.append(token)
        self.values.append(value)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def to(self, upload: Upload) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Their places and the numbers."""
        rows, tokens = upload(torch.tensor([self.rows, self.tokens])).unbind()
        return (rows, tokens), upload(torch.tensor(self.values))


def penalised(logits: Tensor, contexts: Sequence[Context], upload: Upload) -> Tensor:
    """Apply the repetition penalty (prompt and answer) and OpenAI's (answer only), then the biases, to ``logits``
    (sequences, vocabulary) in float32, which stay as they are. ``upload`` brings a host tensor to their device.

    Repetition: a logit above zero is divided by it, one below multiplied (Keskar and others, "CTRL", 2019).
    OpenAI's: logit -= presence * (count > 0) + frequency * count, as its API reference defines them.
    """
    repeated, less, more = Changes(), Changes(), Changes()
    for row, (params, tokens, prompt, _) in enumerate(contexts):
        if params.repetition_penalty != 1.0:
            for token in set(tokens):
                repeated.add(row, token, params.repetition_penalty)
        if params.presence_penalty or params.frequency_penalty:
            for token, count in Counter(tokens[prompt:]).items():
                less.add(row, token, params.presence_penalty + params.frequency_penalty * count)
        for token, bias in params.logit_bias.items():
            if 0 <= token < logits.shape[-1]:
                more.add(row, token, bias)
    if not (repeated or less or more):
        return logits
    scores = logits.clone()
    if repeated:
        places, penalty = repeated.to(upload)
        seen = scores[places]
        scores.index_put_(places, torch.where(seen < 0, seen * penalty, seen / penalty))
    if less:
        places, amount = less.to(upload)
        scores.index_put_(places, scores[places] - amount)
    if more:
        places, amount = more.to(upload)
        scores.index_put_(places, scores[places] + amount)
    return scores


def allowed(logits: Tensor, contexts: Sequence[Context], upload: Upload) -> Tensor:
    """``logits`` (sequences, vocabulary), which stay as they are, with minus infinity for what is not allowed."""
    masks = [context.mask for context in contexts if context.mask is not None]
    if not masks:
        return logits
    size = logits.shape[-1]
    if logits.is_cpu:
        bits = np.stack(masks) if len(masks) > 1 else masks[0]
        biases = torch.from_numpy(_BIASES.take(bits, axis=0).reshape(len(masks), -1)[:, :size])
    else:  # to which bits are brought sooner
        places = upload(torch.from_numpy(np.stack(masks))).long()
        biases = upload(torch.from_numpy(_BIASES))[places].flatten(1)[:, :size]
    if len(masks) == len(contexts):
        return logits + biases
    rows = torch.tensor([row for row, context in enumerate(contexts) if context.mask is not None])
    return logits.index_add(0, upload(rows), biases)


def reported(logits: Tensor) -> Tensor:
    """Log-probabilities along the last axis, before temperature and cuts."""
    return logits.log_softmax(dim=-1).nan_to_num(LOWEST_LOGPROB).clamp_min(LOWEST_LOGPROB)

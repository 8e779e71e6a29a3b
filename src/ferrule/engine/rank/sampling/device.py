"""Sampling on an accelerator: the tokens of all sequences of a batch from logits that stay there.

The same cuts and the same place in the distribution as in the native library (native/src/compute/sample.h), so that a
seed gives the same tokens: the random numbers come from the host. The host waits once, for the tokens and what was
asked about their probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ferrule.engine.devices import Device
from ferrule.engine.rank.sampling.logits import Context, allowed, penalised, reported
from ferrule.engine.types import SamplingParams

_COLD = 1e-5
"""Below this temperature only the likeliest token is left."""
_NOTHING = 2e-38
"""A weight up to this one is that of a logit too low to come, or of none."""
_WIDE = {"mps": torch.float32, "xpu": torch.float32}
"""Dtype in which probabilities are added up, where not float64: Apple's GPUs have none, and not all of Intel's."""


class Chosen(NamedTuple):
    """By sequence, in host memory. ``tokens``: the vocabulary's size where there is none to choose. ``logprobs`` of
    these and the likeliest (``top``) with their ids, where some sequence wants them."""

    tokens: list[int]
    logprobs: Tensor | None = None
    top: Tensor | None = None
    ids: Tensor | None = None


class Choosing(NamedTuple):
    """``tokens`` (sequences,) on the device, each one of the vocabulary even where there is none to choose. ``read``:
    waits for them and what was asked about them, but not for what the device was given since."""

    tokens: Tensor
    read: Callable[[], Chosen]


def choose_there(device: Device, logits: Tensor, contexts: Sequence[Context], chances: Sequence[float]) -> Choosing:
    """``logits`` (sequences, vocabulary) on ``device``, in float32; ``chances``: of [0, 1), one for each sequence."""
    with torch.inference_mode():
        logits = allowed(logits, contexts, device.upload)
        scores = penalised(logits, contexts, device.upload)
        tokens = _tokens(device, scores, [context.params for context in contexts], chances)
        wanted = [context.params.logprobs for context in contexts if context.params.logprobs is not None]
        valid, asked = tokens.clamp_max(logits.shape[-1] - 1), [tokens]
        if wanted:
            logprobs = reported(logits)
            top, ids = logprobs.topk(min(max(wanted), logits.shape[-1]))
            asked += [logprobs.gather(-1, valid.unsqueeze(-1)).squeeze(-1), top, ids]
        arrived = device.download_later(asked)

    def read() -> Chosen:
        host, *about = arrived()
        return Chosen(host.tolist(), *about)

    return Choosing(valid, read)


def _tokens(device: Device, scores: Tensor, params: Sequence[SamplingParams], chances: Sequence[float]) -> Tensor:
    """(sequences,): the token of each; the vocabulary's size where no score is a number."""
    numbers = torch.arange(scores.shape[-1], device=scores.device)
    absent = torch.full_like(numbers[:1], scores.shape[-1])
    lowest = torch.where(scores.isnan(), -torch.inf, scores)
    top = lowest.amax(-1, keepdim=True)
    likeliest = torch.where((lowest == top) & ~scores.isnan(), numbers, absent).amin(-1)  # the first of equal ones
    if all(one.temperature < _COLD for one in params):
        return likeliest
    wide = _WIDE.get(device.torch_device.type, torch.float64)
    rows = [
        [1 / max(one.temperature, _COLD), one.temperature >= _COLD, one.top_k, one.top_p, one.min_p, chance]
        for one, chance in zip(params, chances, strict=True)
    ]
    numbers_of = device.upload(torch.tensor(rows, dtype=wide)).unsqueeze(-1)  # (sequences, 6, 1)
    inverse, warm, most, part, least_part, chance = numbers_of.unbind(1)
    weights = ((lowest - top) * inverse.float()).exp()
    least = _least(weights, params, most.long(), part, least_part.float(), wide)
    kept = torch.where((weights >= least) & (weights > _NOTHING), weights, 0.0)
    ends = kept.to(wide).cumsum(-1)
    drawn = torch.searchsorted(ends, ends[:, -1:] * chance, right=True).squeeze(-1)
    last = torch.where(kept > 0, numbers, 0).amax(-1)  # where rounding leaves something
    random = (warm.squeeze(-1) > 0) & ~top.isinf().squeeze(-1)
    return torch.where(random, torch.minimum(drawn, last), likeliest)


def _least(
    weights: Tensor, params: Sequence[SamplingParams], most: Tensor, part: Tensor, least_part: Tensor, wide: torch.dtype
) -> Tensor:
    """(sequences, 1): the least weight that the cuts leave, each applied to what the last one left."""
    size = weights.shape[-1]
    least = torch.zeros_like(weights[:, :1])
    highest = max((one.top_k for one in params if one.top_k < size), default=0)
    nuclear = any(one.top_p < 1 for one in params)
    if not highest and not nuclear:
        return torch.maximum(least, least_part)
    known = weights.nan_to_num(0.0)
    ranked = known.sort(-1, descending=True).values if nuclear else known.topk(highest).values
    if highest:
        limited = (most > 0) & (most < size)
        nth = ranked.gather(-1, (most - 1).clamp(0, ranked.shape[-1] - 1))
        least = torch.where(limited, nth, least)
    if nuclear:
        reached = torch.where(ranked >= least, ranked, 0.0).to(wide).cumsum(-1)
        place = torch.searchsorted(reached, reached[:, -1:] * part)
        border = ranked.gather(-1, place.clamp_max(size - 1))
        least = torch.where(part < 1, torch.maximum(least, border), least)
    return torch.maximum(least, least_part)

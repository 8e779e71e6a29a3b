"""Log-probabilities of a prompt's tokens, from the logits after those before them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ferrule.engine.devices import Device
from ferrule.engine.messages import Scores
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.sampling.logits import reported
from ferrule.engine.rank.sequence import Sequence
from ferrule.engine.types import PromptToken

_BYTES = 64 << 20
"""Of the logits of one step that are kept for this."""
_FEWEST, _MOST = 16, 512
_BLOCK = 16
"""Rows whose log-probabilities are computed at once, which takes several times the memory of their logits."""


def rows_at_once(vocabulary: int) -> int:
    """Of how many tokens the logits are kept in one step."""
    return max(_FEWEST, min(_MOST, _BYTES // (4 * vocabulary)))


def scored(device: Device, logits: Tensor, sequence: Sequence) -> tuple[PromptToken, ...]:
    """Those of the tokens of ``sequence`` that follow the ``scored`` + 1 first ones, one for each row of ``logits``
    (rows, vocabulary) on ``device``: the row after the token before."""
    first = sequence.scored + 1
    following = device.upload(torch.tensor(sequence.tokens[first : first + len(logits)])).unsqueeze(-1)
    count = min(sequence.params.prompt_logprobs or 0, logits.shape[-1])
    parts: list[list[Tensor]] = [[], [], [], []]
    with torch.inference_mode():
        for rows, ids in zip(torch.split(logits, _BLOCK), torch.split(following, _BLOCK), strict=True):
            logprobs = reported(rows)
            own = logprobs.gather(-1, ids)
            top, likeliest = logprobs.topk(count)
            for part, found in zip(parts, (own.squeeze(-1), (logprobs > own).sum(-1) + 1, top, likeliest), strict=True):
                part.append(found)
        host = device.download_all([torch.cat(part) for part in parts])
    told = [each.tolist() for each in host]
    return tuple(
        PromptToken(value, rank, tuple(zip(others, theirs, strict=True)))
        for value, rank, theirs, others in zip(*told, strict=True)
    )


def score_batch(
    device: Device, batch: Batch, logits: Tensor, sequences: Mapping[int, Sequence]
) -> tuple[list[Scores], Tensor]:
    """Log-probabilities of prompts of which ``batch`` has a piece, and the ``logits`` of the sequences that want
    tokens."""
    found: list[Scores] = []
    kept: list[int] = []
    end = 0
    for span in batch.spans:
        first, end = end, end + span.rows
        if span.sample:
            kept += range(end - 1 - span.drafted, end)
        sequence = sequences[span.sequence]
        count = min(sequence.prompt - 1, span.seen + span.tokens) - sequence.scored
        if span.scored and count > 0 and not sequence.cancelled:
            rows = logits[first + sequence.scored - span.seen :][:count]
            found.append(Scores(span.sequence, sequence.scored, scored(device, rows, sequence)))
            sequence.scored += count
    return found, logits.index_select(0, device.upload(torch.tensor(kept, dtype=torch.long)))

"""Recurrent state of sequences: linear attention, state space models and short convolutions over batches of them.

transformers' mixers of these kinds take sequences of one length. Here a batch is a row of tokens of several, so a mixer
is called once for each segment, and once for all segments of one token together; what it keeps of a sequence is in
that one's `State`, by layer. A later piece of a prompt begins with what the one before left, as with transformers' own
caches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ferrule.engine.rank.cache.sequence import State
from ferrule.engine.rank.kv_cache import KVCache
from ferrule.errors import ModelError

CACHE = "cache"
"""Argument by which mixers are given what they keep, since transformers 5.24."""


class States:
    """The states of some sequences as one batch, by the methods of transformers' ``Cache`` that mixers call. Mixers
    change what they are given in place; `keep` brings that back to several sequences."""

    def __init__(self, of: Sequence[State]) -> None:
        self._of = of
        self._lent: list[tuple[list[Tensor], Tensor]] = []

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._lend([state.windows.get((layer_idx, state_idx)) for state in self._of])

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._lend([state.states.get((layer_idx, state_idx)) for state in self._of])

    def _lend(self, kept: list[Tensor | None]) -> Tensor | None:
        own = [each for each in kept if each is not None]
        if len(own) < len(kept):
            return None
        if len(own) == 1:
            return own[0]
        lent = torch.cat(own)
        self._lent.append((own, lent))
        return lent

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 1, **_: Any
    ) -> Tensor:
        """Keep the newest inputs (sequences, channels, tokens); returns them behind those kept, or behind zeros."""
        before = self.get_conv_state(layer_idx, state_idx)
        missing = max(0, conv_kernel_size - conv_states.shape[-1])
        whole = functional.pad(conv_states, (missing, 0)) if before is None else torch.cat((before, conv_states), -1)
        for state, newest in zip(self._of, torch.split(whole[..., -conv_kernel_size:], 1), strict=True):
            state.windows[layer_idx, state_idx] = newest.clone()
        return whole

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Keep what a recurrence ends with: (sequences, ...)."""
        for state, newest in zip(self._of, torch.split(recurrent_states, 1), strict=True):
            state.states[layer_idx, state_idx] = newest.clone()
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def keep(self) -> None:
        """Give every sequence its part of what was lent as one tensor."""
        for own, lent in self._lent:
            for one, part in zip(own, torch.split(lent, 1), strict=True):
                one.copy_(part)


def attach(base: nn.Module, cache: KVCache) -> None:
    """Run every mixer of ``base`` segment by segment, with the states of ``cache``. Raises `ModelError` where the
    installed transformers hands them these otherwise."""
    for module in base.modules():
        if not is_mixer(module):
            continue
        if CACHE not in inspect.signature(module.forward).parameters:
            raise ModelError(
                f"{type(module).__name__} of the installed transformers keeps its state in a way that this engine does "
                "not know; install transformers 5.24 or later"
            )
        layer: Any = module.layer_idx
        module.forward = partial(_by_segment, cache, layer, module.forward)


def is_mixer(module: nn.Module) -> bool:
    """Whether ``module`` is a layer's mixer with a convolution, as all with a recurrent state have."""
    return hasattr(module, "layer_idx") and any(isinstance(child, nn.Conv1d) for child in module.children())


def _by_segment(
    kept: KVCache, layer: int, forward: Callable[..., Tensor], hidden_states: Tensor, *_: Any, **__: Any
) -> Tensor:
    """``hidden_states`` (1, tokens, width) of all segments; there is no padding to be masked."""
    parts = [hidden_states[:, segment.start : segment.stop] for segment in kept.segments]
    states = [segment.cache.state for segment in kept.segments]
    steps = [number for number, part in enumerate(parts) if part.shape[1] == 1 and states[number].has(layer)]
    groups = [[number] for number in range(len(parts)) if number not in steps]
    if steps:
        groups.append(steps)
    outputs: dict[int, Tensor] = {}
    for numbers in groups:
        batch = States([states[number] for number in numbers])
        found = forward(torch.cat([parts[number] for number in numbers]), **{CACHE: batch})
        batch.keep()
        outputs.update(zip(numbers, torch.split(found, 1), strict=True))
    return torch.cat([outputs[number] for number in range(len(parts))], dim=1)

"""Keys, values and state of one sequence, for the layers of this rank."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ferrule.errors import ModelError
from ferrule.plan import BUILT_IN_ENGINE

GROW = BUILT_IN_ENGINE.cache_ahead
"""At most this many tokens of room are added at once beyond what a sequence needs."""
ROUND = 64


@dataclass
class State:
    """State of the mixers for one sequence. By layer and number: ``windows`` (1, channels, kernel), the last inputs of
    a convolution; ``states`` (1, ...), those of a recurrence."""

    windows: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    states: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(each.nbytes for kept in (self.windows, self.states) for each in kept.values())

    def has(self, layer: int) -> bool:
        """Whether the mixer of ``layer`` has kept something: each has a convolution first."""
        return (layer, 0) in self.windows

    @property
    def layers(self) -> set[int]:
        return {layer for kept in (self.windows, self.states) for layer, _ in kept}


@dataclass
class SequenceCache:
    """One sequence's keys and values: per layer, (heads, room, width), filled up to ``length`` tokens; ``index``: an
    indexer's keys.

    ``long``: its keys have the rotary frequencies of long sequences (`long_rope`). Contiguous per sequence rather than
    paged: on a CPU attention then reads plain views, with no gather. Growing copies a sequence once per ``GROW``
    tokens.
    """

    length: int = 0
    long: bool = False
    state: State = field(default_factory=State)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    index: dict[int, Tensor] = field(default_factory=dict)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new tokens' ``key`` and ``value`` (heads, tokens, width) behind ``length``; views of all so far.

        ``length`` itself moves on in `advance`, when every layer has stored its part.
        """
        return self.store(self.keys, layer, key), self.store(self.values, layer, value)

    def seen(self, layer: int, new: int) -> tuple[Tensor, Tensor]:
        """Keys and values that ``layer`` has stored, ``new`` tokens of this batch included."""
        end = self.length + new
        return self.keys[layer][:, :end], self.values[layer][:, :end]

    def store(self, kept: dict[int, Tensor], layer: int, new: Tensor) -> Tensor:
        """Store ``new`` (heads, tokens, width) among the tensors ``kept`` of this sequence; a view of all so far."""
        end = self.length + new.shape[1]
        room = self._room(kept, layer, new, end)
        room[:, self.length : end] = new
        return room[:, :end]

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def _room(self, stored: dict[int, Tensor], layer: int, new: Tensor, end: int) -> Tensor:
        buffer = stored.get(layer)
        if buffer is not None and self.length == 0:  # seen in the trial run, before any request
            raise ModelError(f"the model runs layer {layer} more than once per token, which this engine does not do")
        if buffer is not None and buffer.shape[1] >= end:
            return buffer
        room = -(-min(max(end, 2 * self.length), end + GROW) // ROUND) * ROUND
        grown = torch.empty(new.shape[0], room, new.shape[2], dtype=new.dtype, device=new.device)
        if buffer is not None:
            grown[:, : self.length] = buffer[:, : self.length]
        stored[layer] = grown
        return grown

    def drop(self) -> None:
        """Give back what does not go with it."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token takes on this rank, over all its layers."""
        tensors = [*self.keys.values(), *self.values.values(), *self.index.values()]
        return sum(t.shape[0] * t.shape[2] * t.element_size() for t in tensors)

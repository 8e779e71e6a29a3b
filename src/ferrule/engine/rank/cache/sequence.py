"""Keys, values and state of one sequence, for the layers of this rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import torch
from torch import Tensor

from ferrule.engine.rank.cache.codes import Codes
from ferrule.errors import ModelError
from ferrule.plan import BUILT_IN_ENGINE

GROW = BUILT_IN_ENGINE.cache_ahead
"""At most this many tokens of room are added at once beyond what a sequence needs."""
ROUND = 64


@dataclass
class State:
    """State of one sequence, however long it is. By layer and number: ``windows`` (1, channels, kernel), the last
    inputs of a mixer's convolution; ``states`` (1, ...), those of a recurrence; ``newest`` (1, room, width), what
    compressed attention needs of the last tokens."""

    windows: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    states: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    newest: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(each.nbytes for kept in (self.windows, self.states, self.newest) for each in kept.values())

    def room(self, layer: int, number: int, shape: tuple[int, int, int], like: Tensor) -> Tensor:
        """That of ``newest``, made at first of ``shape`` and for numbers like those of ``like``."""
        found = self.newest.get((layer, number))
        if found is None:
            found = self.newest[layer, number] = like.new_empty(shape)
        return found

    def has(self, layer: int) -> bool:
        """Whether the mixer of ``layer`` has kept something: each has a convolution first."""
        return (layer, 0) in self.windows

    @property
    def layers(self) -> set[int]:
        return {layer for kept in (self.windows, self.states, self.newest) for layer, _ in kept}


@dataclass
class SequenceCache:
    """One sequence's keys and values: per layer, (heads, room, width), filled up to ``length`` tokens; ``index``: an
    indexer's keys. ``entries``: by layer and number, those that each stand for ``rates`` tokens.

    ``codes``: keys and values are kept by these, as bytes; ``index`` and ``entries`` never are.
    ``long``: its keys have the rotary frequencies of long sequences (`long_rope`). Contiguous per sequence rather than
    paged: on a CPU attention then reads plain views, with no gather. Growing copies a sequence once per ``GROW``
    tokens.
    """

    length: int = 0
    long: bool = False
    codes: Codes | None = None
    state: State = field(default_factory=State)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    index: dict[int, Tensor] = field(default_factory=dict)
    entries: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    rates: dict[tuple[int, int], int] = field(default_factory=dict)

    def append(self, layer: int, key: Tensor, value: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """Store the new tokens' ``key`` and ``value`` (heads, tokens, width) behind ``length``; views of all so far
        from position ``first`` on.

        ``length`` itself moves on in `advance`, when every layer has stored its part.
        """
        new = key.shape[1]
        if self.codes is not None:
            key, value = self.codes.encode(layer, key, value)
        self.store(self.keys, layer, key)
        self.store(self.values, layer, value)
        return self.seen(layer, new, first)

    def append_keys(self, layer: int, key: Tensor) -> Tensor:
        """The same where there are no values beside keys."""
        if self.codes is None:
            return self.store(self.keys, layer, key)
        kept = self.store(self.keys, layer, self.codes.pack(key))
        return self.codes.unpack(kept, key.shape[-1], key.dtype)

    def seen(self, layer: int, new: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values that ``layer`` has stored from position ``first`` on, ``new`` tokens of this batch
        included."""
        end = self.length + new
        kept = self.keys[layer][:, first:end], self.values[layer][:, first:end]
        return kept if self.codes is None else self.codes.decode(layer, *kept)

    def store(self, kept: dict[int, Tensor], layer: int, new: Tensor) -> Tensor:
        """Store ``new`` (heads, tokens, width) among the tensors ``kept`` of this sequence; a view of all so far."""
        end = self.length + new.shape[1]
        room = self._room(kept, layer, new, end)
        room[:, self.length : end] = new
        return room[:, :end]

    def extend(self, layer: int, number: int, made: Tensor, rate: int, first: int, new: int) -> Tensor:
        """Store entries ``made`` (1, entries, width) of ``new`` tokens, each of which stands for ``rate`` of them,
        behind the ``first`` ones; a view of all so far."""
        end, kept = first + made.shape[1], self.entries.get((layer, number))
        if kept is None or kept.shape[1] < end:
            grown = made.new_empty((1, -(-self._tokens(self.length + new) // rate), made.shape[2]))
            if kept is not None:
                grown[:, :first] = kept[:, :first]
            kept = self.entries[layer, number] = grown
            self.rates[layer, number] = rate
        kept[:, first:end] = made
        return kept[:, :end]

    def start_with(self, kept: dict[int, Tensor], layer: int, pieces: list[Tensor]) -> None:
        """Have ``pieces`` (heads, tokens, width) among the tensors ``kept`` of this sequence, its ``length`` tokens."""
        first = pieces[0]
        room = kept[layer] = first.new_empty((first.shape[0], self._tokens(self.length), first.shape[2]))
        start = 0
        for piece in pieces:
            room[:, start : start + piece.shape[1]] = piece
            start += piece.shape[1]

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def cut(self, tokens: int) -> None:
        """Forget all behind the first ``tokens``; what is kept of them must not depend on what came later."""
        self.length = tokens

    def _tokens(self, end: int) -> int:
        """Tokens that room is made for, when there are to be ``end``."""
        return -(-min(max(end, 2 * self.length), end + GROW) // ROUND) * ROUND

    def _room(self, stored: dict[int, Tensor], layer: int, new: Tensor, end: int) -> Tensor:
        buffer = stored.get(layer)
        if buffer is not None and self.length == 0:  # seen in the trial run, before any request
            raise ModelError(f"the model runs layer {layer} more than once per token, which this engine does not do")
        if buffer is not None and buffer.shape[1] >= end:
            return buffer
        grown = torch.empty(new.shape[0], self._tokens(end), new.shape[2], dtype=new.dtype, device=new.device)
        if buffer is not None:
            grown[:, : self.length] = buffer[:, : self.length]
        stored[layer] = grown
        return grown

    def drop(self) -> None:
        """Give back what does not go with it."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token takes on this rank, over all its layers; where entries stand for several tokens, on
        average."""
        tensors = [*self.keys.values(), *self.values.values(), *self.index.values()]
        size = sum(t.shape[0] * t.shape[2] * t.element_size() for t in tensors)
        return size + ceil(sum(t.shape[2] * t.element_size() / self.rates[key] for key, t in self.entries.items()))

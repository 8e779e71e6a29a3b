"""A model computed in one piece in float32, holding one layer at a time: what its parts together must give.

It shares with the split model the reading of checkpoints and transformers' modules, but no slicing, no cache, no
batching, no attention function and no fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ferrule.engine.architectures import mask_chunks, mask_windows, streams_of
from ferrule.engine.rank import attention
from ferrule.engine.rank.kv_cache import KVCache
from ferrule.engine.rank.model import empty, restore_buffers, tied
from ferrule.engine.rank.probe import output_of
from ferrule.engine.rank.vision.parts import base_name, drop_tower
from ferrule.engine.selftest.compare import Rows
from ferrule.engine.selftest.prompts import columns
from ferrule.engine.source import read_config, read_seeing
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.loading import assign, check_complete, fill, recipes, targets
from ferrule.staging import Uploads

NAME = "ferrule-reference"
LONG_FLOPS = 2e11
"""Arithmetic that the long prompt may cost, unless one layer of each kind costs more: seconds on one core."""
MOST_KINDS = 8
"""Layers up to which the long prompt goes to meet every kind of layer."""

OnProgress = Callable[[int, int], None]


def plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    indices: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention by its definition, one head after the other. Arguments as in `attention.batch_attention`."""
    window = getattr(module, attention.WINDOW) if sliding_window is None else sliding_window
    heads, tokens, width = query.shape[1:]
    place = torch.arange(tokens)
    distance = place.unsqueeze(1) - place.unsqueeze(0)
    hidden: Tensor = distance < 0 if window is None else (distance < 0) | (distance >= window)
    chunk = getattr(module, attention.CHUNK)
    if chunk is not None:
        hidden |= place.unsqueeze(1) // chunk != place.unsqueeze(0) // chunk
    if key.shape[2] > tokens and attention_mask is not None:  # entries that stand for several tokens
        hidden = attention_mask[0, 0] < 0
    if indices is not None:  # the tokens that an indexer has chosen
        hidden |= torch.ones_like(hidden).scatter(1, indices[0].long(), False)
    scale = width**-0.5 if scaling is None else scaling
    outputs = []
    for head in range(heads):
        of = head * key.shape[1] // heads
        scores = (query[0, head] @ key[0, of].T) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.masked_fill(hidden, float("-inf"))
        if s_aux is not None:
            sink = s_aux.reshape(-1)[head].expand(tokens, 1)
            scores = torch.cat([scores, sink], dim=1)
        weights = scores.softmax(dim=1)[:, : key.shape[2]]
        outputs.append(weights @ value[0, of])
    return torch.stack(outputs, dim=1).unsqueeze(0).contiguous(), None


class Reference:
    """The model of ``directory``, computed in one piece. ``on_progress``: bytes of the layers that
    have run, and of those to be run."""

    def __init__(self, directory: Path, checkpoint: Checkpoint, on_progress: OnProgress) -> None:
        self.config = read_config(directory)
        self.checkpoint, self.on_progress = checkpoint, on_progress
        AttentionInterface.register(NAME, plain_attention)
        self.model = empty(read_seeing(directory) or self.config, torch.float32, NAME)
        drop_tower(self.model)
        self.base = self.model.get_submodule(base_name(self.model))
        attention.attach(self.base, KVCache(), mask_windows(self.config), mask_chunks(self.config))
        if streams_of(self.config) > 1:
            self.base.register_forward_pre_hook(_with_windows, with_kwargs=True)
        elif any(isinstance(getattr(each, "indexer", None), nn.Module) for each in self.base.modules()):
            self.base.register_forward_pre_hook(_with_mask, with_kwargs=True)
        self.made_of = recipes(self.model, list(checkpoint.tensors))
        self.aliases = tied(self.model, self.made_of)
        self.layers = list(self.base.layers)
        names = {module: name for name, module in self.model.named_modules()}
        units = {names[unit]: unit for unit in _units(self.model, self.base)}
        streamed = tuple(f"{name}." for name in units)
        parameters = {name for name, _ in self.model.named_parameters()}
        for name, tensor in targets(self.model):
            if name not in parameters or not name.startswith(streamed):
                self._load(name, tensor)  # small: buffers, and what belongs to no layer
        restore_buffers(self.model, torch.device("cpu"))
        self.ran, self.total = 0, 0
        for name, unit in units.items():
            unit.register_forward_pre_hook(lambda module, _, name=name: self._enter(name, module))
            unit.register_forward_hook(lambda module, _, out, name=name: self._leave(name, module))

    def logits(self, ids: list[int], rows: list[int]) -> Rows:
        """Of the tokens ``rows``: (rows, sampled columns)."""
        self.ran, self.total = 0, sum(map(_bytes, self.layers))
        with torch.inference_mode():
            out = self.model(**self._inputs(ids), use_cache=False, logits_to_keep=torch.tensor(rows))
            return sampled(out.logits[0])

    def hidden(self, ids: list[int], rows: list[int], depth: int) -> Rows:
        """Hidden states of the tokens ``rows`` after the first ``depth`` layers: (rows, sampled columns)."""
        self.ran, self.total = 0, sum(map(_bytes, self.layers[:depth]))
        with torch.inference_mode():
            hidden = output_of(self.layers[depth - 1], lambda: self.base(**self._inputs(ids), use_cache=False))
            return sampled(hidden[rows])

    def depth(self, tokens: int, most: int) -> int:
        """Number of layers that a prompt of ``tokens`` is run through: as many as cost little, but at least one of each
        kind where that is no more than a few, and ``most`` at the most."""
        kinds = getattr(self.config, "layer_types", None) or [""] * len(self.layers)
        sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in self.layers]
        seen = list(zip(kinds, sizes, strict=True))
        last_new = max(seen.index(kind) for kind in set(seen)) + 1
        active = [_active(layer, getattr(self.config, "num_experts_per_tok", None)) for layer in self.layers]
        costs = [2.0 * tokens * (numbers + 2 * tokens * self.config.hidden_size) for numbers in active]
        cheap = 1
        while cheap < len(costs) and sum(costs[: cheap + 1]) <= LONG_FLOPS:
            cheap += 1
        return min(most, max(cheap, min(last_new, MOST_KINDS)))

    def _inputs(self, ids: list[int]) -> dict[str, Tensor]:
        given = {"input_ids": torch.tensor([ids])}
        if self.config.model_type == "llama4_text":  # moves ids to where the weight is: nowhere before it is called
            given = {"inputs_embeds": self.model.get_input_embeddings()(given["input_ids"])}
        return given | {"position_ids": torch.arange(len(ids)).unsqueeze(0)}

    def _load(self, name: str, like: Tensor) -> None:
        held = torch.empty(like.shape, dtype=torch.float32 if like.is_floating_point() else like.dtype)
        source = self.aliases.get(name, name)
        check_complete([source], self.made_of, self.checkpoint)
        fill(held, source, self.made_of[source], None, self.checkpoint, self.model, Uploads(held.device))
        assign(self.model, name, held)

    def _enter(self, name: str, module: nn.Module) -> None:
        for inner, parameter in list(module.named_parameters()):
            self._load(f"{name}.{inner}", parameter)

    def _leave(self, name: str, module: nn.Module) -> None:
        for inner, parameter in list(module.named_parameters()):
            assign(self.model, f"{name}.{inner}", torch.empty_like(parameter, device="meta"))
        if module in self.layers:
            self.ran += _bytes(module)
            self.on_progress(self.ran, self.total)


def _with_mask(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Indexers ask for a mask, which transformers makes for attention of its own only."""
    tokens = given["input_ids"].shape[1]
    seen = torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()
    return args, given | {"attention_mask": {"indexed_attention": seen}}


def _with_windows(base: Any, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Compressed attention adds entries to the mask of a window, which is made here as it is for the others."""
    tokens = given["input_ids"].shape[1]
    window = attention.causal_mask(tokens, 0, tokens, base.config.sliding_window, None, torch.device("cpu"))
    hidden = torch.zeros(window.shape).masked_fill(~window, float("-inf"))
    return args, given | {"attention_mask": {"sliding_attention": hidden[None, None]}}


def _units(module: nn.Module, base: nn.Module) -> Iterator[nn.Module]:
    """The modules that are loaded as a whole when they are called."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict) or any(inner is base for inner in child.modules()):
            yield from _units(child, base)
        else:
            yield child


def _bytes(layer: nn.Module) -> int:
    """Of its parameters, as they are held here."""
    return sum(parameter.numel() * parameter.element_size() for parameter in layer.parameters())


def _active(layer: nn.Module, chosen: int | None) -> int:
    """Parameters that a token meets; of stacked experts those that are chosen."""
    return sum(
        parameter.numel() if chosen is None or parameter.dim() < 3 else parameter.numel() // parameter.shape[0] * chosen
        for parameter in layer.parameters()
    )


def sampled(rows: Tensor) -> Rows:
    found: Rows = rows[:, columns(rows.shape[1])].float().numpy()
    return found

"""Model spec: the planner's description of a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ferrule.model.layer import COMPACT, WHOLE, CachePolicy, Collective, LayerSpec, Share, Weights
from ferrule.model.split import no_plan

Counted = Literal["headers", "index", "config"]


@dataclass(frozen=True)
class ModelSpec:
    """A model as the planner sees it: counts and sizes, no weights.

    ``decoder``: its layers in order. ``embedding`` is held by the first pipeline stage, ``final`` (the last norm, and
    what belongs to no layer) and ``head`` (the output matrix) by the last. With ``tied`` embeddings ``head`` is the
    same matrix as the embedding's, held once where both are on one rank.

    ``query_heads`` and ``key_value_heads``: of a usual layer, as attention sees them (latent attention has as many
    key/value heads as query heads). ``activation_bytes``: of one number between layers.
    ``cache_bits``: of the codes by which the built-in engine keeps keys and values; 0: as it computes. ``stored``: the
    format of the weights in words (``bfloat16``, ``4-bit in groups of 64``). ``counted``: whether ``bytes`` come from
    the headers of the files, from the index, or from ``config.json`` alone by arithmetic.

    ``tensor_refusal``, ``pipeline_refusal`` and ``expert_refusal`` say why the built-in engine cannot split this
    architecture that way, or are None. ``notes``: what a user should know about these numbers.
    ``streams``: hidden states of a token side by side between layers (hyper-connections: Xie et al. 2026).
    ``vision``: the part that sees, held whole by every rank of the first stage.
    ``known_family``: False where cache and arithmetic are a guess, as of full attention.
    ``encoder``: it makes vectors only, of texts that it takes whole.
    ``draft``: a small model that guesses tokens for it, held whole by the driver.
    """

    name: str
    architecture: str
    model_type: str
    decoder: tuple[LayerSpec, ...]
    embedding: Weights
    head: Weights
    final: Weights
    tied: bool
    hidden_size: int
    query_heads: int
    key_value_heads: int
    vocab_size: int
    max_context: int
    activation_bytes: float = 2.0
    cache_bits: int = 0
    stored: str = ""
    counted: Counted = "config"
    tensor_refusal: str | None = None
    pipeline_refusal: str | None = None
    expert_refusal: str | None = None
    notes: tuple[str, ...] = ()
    known_family: bool = True
    streams: int = 1
    vision: Weights = field(default_factory=Weights)
    encoder: bool = False
    draft: ModelSpec | None = None

    @property
    def layers(self) -> int:
        return len(self.decoder)

    @cached_property
    def alike(self) -> tuple[LayerSpec, ...]:
        """``decoder`` with one object for all equal layers, so that what depends on a layer alone is computed once."""
        seen: dict[LayerSpec, LayerSpec] = {}
        return tuple(seen.setdefault(layer, layer) for layer in self.decoder)

    @cached_property
    def experts(self) -> int:
        """Number of routed experts of a layer, the most that any has."""
        return max((layer.experts.count for layer in self.decoder if layer.experts), default=0)

    @cached_property
    def attention_cut(self) -> bool:
        """Whether tensor parallelism shares out the projections of attention."""
        attention = [layer.weights.attention for layer in self.decoder]
        return any(weights.whole < weights.bytes for weights in attention)

    @cached_property
    def recurrent(self) -> bool:
        """Whether it keeps a state of each sequence beside keys and values."""
        return any(layer.state_bytes() for layer in self.alike)

    @cached_property
    def in_engine(self) -> ModelSpec:
        """The same with the bytes that the built-in engine holds in memory, instead of those that are stored."""
        by_layer = {layer: layer.in_engine for layer in set(self.decoder)}
        return replace(
            self,
            decoder=tuple(by_layer[layer] for layer in self.decoder),
            embedding=self.embedding.in_engine,
            head=self.head.in_engine,
            final=self.final.in_engine,
            vision=self.vision.in_engine,
            draft=None if self.draft is None else self.draft.in_engine,
        )

    @cached_property
    def layer_bytes(self) -> tuple[int, ...]:
        return tuple(layer.bytes for layer in self.decoder)

    @property
    def embedding_bytes(self) -> int:
        """Bytes that a first pipeline stage holds beside its layers."""
        return self.embedding.bytes + self.vision.bytes

    @property
    def head_bytes(self) -> int:
        """Bytes that a last pipeline stage holds beside its layers when the embedding is elsewhere."""
        return self.head.bytes + self.final.bytes

    @property
    def bytes(self) -> int:
        """All weights, as stored."""
        ends = self.embedding.bytes + self.vision.bytes + self.final.bytes + (0 if self.tied else self.head.bytes)
        return sum(self.layer_bytes) + ends

    @property
    def parameters(self) -> int:
        ends = self.embedding.parameters + self.vision.parameters + self.final.parameters
        ends += 0 if self.tied else self.head.parameters
        return ends + sum(layer.parameters for layer in self.decoder)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, the whole embedding table counted (as model cards do)."""
        routed_elsewhere = sum(layer.parameters - layer.active_parameters for layer in self.decoder)
        return self.parameters - routed_elsewhere - self.vision.parameters

    @property
    def hidden_bytes(self) -> float:
        """What pipeline messages carry per token: its hidden state, or all that are side by side."""
        return self.streams * self.hidden_size * self.activation_bytes

    @property
    def embedding_row_bytes(self) -> float:
        """Bytes read for one token's row of the embedding."""
        return self.embedding.bytes / self.vocab_size

    @property
    def first_collectives(self) -> tuple[Collective, ...]:
        """Collectives of a vocabulary that is cut over ranks, for each token that enters."""
        return (Collective("all_reduce", self.hidden_size),)

    @property
    def last_collectives(self) -> tuple[Collective, ...]:
        """Collectives of a vocabulary that is cut over ranks, for each token whose logits are asked for: the driver,
        the stage's first rank, collects them."""
        return (Collective("gather", self.vocab_size),)

    def vocabulary_share(self, parts: int) -> float:
        """The largest part of the vocabulary that one of ``parts`` ranks holds; the last ones are padded to it."""
        return -(-self.vocab_size // parts) / self.vocab_size

    def rank_bytes(
        self,
        share: Share = WHOLE,
        vocabulary: float = 1.0,
        *,
        first_layer: int = 0,
        last_layer: int | None = None,
    ) -> int:
        """Bytes of weights on a rank that has ``share`` of layers ``first_layer`` up to ``last_layer`` (not included;
        None: to the end), and ``vocabulary`` of the embedding and the head where these layers are the first, the last.
        """
        last_layer = self.layers if last_layer is None else last_layer
        size = sum(layer.held_bytes(share) for layer in self.decoder[first_layer:last_layer])
        has_embedding, has_head = first_layer == 0, last_layer == self.layers
        if has_embedding:
            size += self.embedding.held(vocabulary) + self.vision.held(1.0)
        if has_head:
            size += self.final.held(1.0)
            size += 0 if self.tied and has_embedding else self.head.held(vocabulary)
        return size

    def cache_bytes(self, tokens: int, policy: CachePolicy = COMPACT) -> float:
        """Bytes of keys and values that one sequence of ``tokens`` tokens takes, over all layers and ranks."""
        return sum(layer.cache_bytes(tokens, policy) for layer in self.decoder)

    def state_bytes(self, policy: CachePolicy = COMPACT) -> float:
        """Bytes that its layers keep of one sequence beside that, however long it is."""
        return sum(layer.state_bytes(policy) for layer in self.decoder)

    def tensor_obstacle(self, parts: int, *, experts: bool = False) -> str | None:
        """Reason why the layers cannot be cut over so many ranks by the built-in engine, or None. ``experts``: with
        routed ones whole."""
        if parts == 1:
            return None
        if self.tensor_refusal:
            return self.tensor_refusal
        if self.query_heads < parts:
            return _too_many(f"{self.query_heads} attention heads", parts, self.query_heads)
        for number, layer in enumerate(self.alike):
            groups = layer.attention.groups if layer.attention and layer.heads_cut else 0
            if 0 < groups < parts:
                return _too_many(f"the {groups} groups of heads of layer {number}", parts, groups)
            if 0 < layer.width < parts and layer.weights.dense.whole < layer.weights.dense.bytes:
                return _too_many(f"the width {layer.width} of layer {number}", parts, layer.width)
            if layer.experts is None:
                continue
            whole = experts or layer.experts.cut == "whole"
            if whole and layer.experts.count < parts:
                return _too_many(f"{layer.experts.count} experts", parts, layer.experts.count)
            if layer.experts.cut == "inside" and not whole and layer.experts.width < parts:
                return _too_many(f"the width {layer.experts.width} of the experts", parts, layer.experts.width)
        return None

    @property
    def has_program(self) -> bool:
        """Whether the built-in engine runs all of its layers by a native step program."""
        return all(layer.program_operations is not None for layer in self.alike)

    @property
    def context_obstacle(self) -> str | None:
        """Reason why ranks of the built-in engine cannot share out keys and values by pages, or None."""
        if self.encoder:
            return f"{self.architecture} is an encoder, which keeps no keys and values"
        if not self.has_program:
            return (
                f"{self.architecture} has no native step program in the built-in engine, and only those share out keys "
                "and values by pages"
            )
        return None

    @property
    def hand_over_obstacle(self) -> str | None:
        """Reason why prompts cannot be computed by other ranks of the built-in engine than answers, or None."""
        if self.encoder:
            return f"{self.architecture} is an encoder, which makes no tokens"
        if not self.has_program:
            return (
                f"{self.architecture} has no native step program in the built-in engine, and only those hand prompts "
                "over"
            )
        return None

    @property
    def hand_over_by_tensors_obstacle(self) -> str | None:
        """The same where some of these ranks compute on devices of their own, or None."""
        if self.cache_bits:
            return "the built-in engine hands quantised keys and values over between processors only"
        if any(layer.attention is not None and layer.attention.kind == "latent" for layer in self.alike):
            return f"the built-in engine hands the latents of {self.architecture} over between processors only"
        return self.hand_over_obstacle

    def expert_obstacle(self, parts: int) -> str | None:
        """Reason why routed experts cannot be given out whole to so many ranks by the built-in engine, or None."""
        if self.expert_refusal:
            return self.expert_refusal
        if not self.experts:
            return f"{self.architecture} has no experts"
        for layer in self.alike:
            if layer.experts is not None and layer.experts.cut is None:
                return no_plan("expert parallel", self.architecture)
            if layer.experts is not None and layer.experts.count < parts:
                return _too_many(f"{layer.experts.count} experts", parts, layer.experts.count)
        return None

    @property
    def exchange_obstacle(self) -> str | None:
        """Reason why tokens cannot be sent to the ranks of their experts, which step programs of the built-in engine
        do, or None."""
        if not self.has_program:
            return f"tokens are sent to their experts by native step programs, and {self.architecture} has none"
        return None


def _too_many(what: str, ranks: int, most: int) -> str:
    return f"{what} cannot be shared by {ranks} ranks; use {most} or less"

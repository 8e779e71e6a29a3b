"""Layer description for the planner: weights by kind, cache, arithmetic, messages when the layer is split."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal, NamedTuple

from ferrule.model.mixer import MixerSpec
from ferrule.model.packing import Pieces, together

VECTOR = 16
"""The built-in engine fills values up to so many numbers."""

CACHE_GROUP, SCALE_BYTES = 32, 2
"""Numbers of a head that share a scale where keys and values are kept by codes, and its bytes."""

FAVOURITES = 0.75
"""Exponent by which so many tokens of a batch choose experts as if at random. Chosen with llama.cpp's batches of 4 to
32 on a DGX Spark in sight (bench/published)."""

Kind = Literal["attention", "key_value", "mixer", "dense", "routed", "shared", "norm", "other"]
AttentionKind = Literal["full", "sliding", "chunked", "latent", "compressed"]


@dataclass(frozen=True)
class Weights:
    """Some weights, added up.

    ``parameters``: how many numbers the model has there; scales and zero points of quantised groups are none.
    ``bytes``: as stored, scales and zero points included. ``whole``: those of the ``bytes`` that every rank holds
    when the others are shared out by tensor parallelism. ``pieces``: as the built-in engine holds them; None where that
    is not known.
    """

    parameters: int = 0
    bytes: int = 0
    whole: int = 0
    pieces: Pieces | None = frozenset()

    def __add__(self, other: Weights) -> Weights:
        unknown = self.pieces is None or other.pieces is None
        pieces = None if unknown else together((*(self.pieces or ()), *(other.pieces or ())))
        return Weights(self.parameters + other.parameters, self.bytes + other.bytes, self.whole + other.whole, pieces)

    def held(self, share: float) -> int:
        """Bytes on a rank whose share of what is cut is ``share`` (0 to 1)."""
        return self.whole + round((self.bytes - self.whole) * share)

    @property
    def in_engine(self) -> Weights:
        """The same with the bytes that the built-in engine holds; as stored where these are not known."""
        if self.pieces is None:
            return self
        size, whole = (sum(piece.bytes(share) for piece in self.pieces) for share in (1.0, 0.0))
        return HeldWeights(self.parameters, size, whole, self.pieces)


@dataclass(frozen=True)
class HeldWeights(Weights):
    """As the built-in engine holds them: cut matrices are filled up to whole blocks, and groups may become smaller."""

    def held(self, share: float) -> int:
        return sum(piece.bytes(share) for piece in self.pieces or ())


class Share(NamedTuple):
    """Share of a layer that one rank of a tensor (or expert) parallel group has, as fractions from 0 to 1.

    ``query`` and ``key_value``: of the heads (a rank never has less than one key/value head: with fewer of them than
    ranks several ranks hold the same one); ``width``: of the columns of dense layers; ``experts``: of the routed
    experts, whole ones or a slice of each; ``shared``: of the columns of shared experts.
    """

    query: float = 1.0
    key_value: float = 1.0
    width: float = 1.0
    experts: float = 1.0
    shared: float = 1.0

    @classmethod
    def even(cls, parts: int) -> Share:
        """One of ``parts`` equal shares."""
        return cls(1 / parts, 1 / parts, 1 / parts, 1 / parts, 1 / parts)


WHOLE = Share()


@dataclass(frozen=True)
class CachePolicy:
    """Cache geometry: how an engine keeps keys and values.

    ``element_bytes``: bytes of one number. ``latents``: latent attention keeps its latents once, or (False) as step
    programs of the built-in engine do: see `AttentionSpec.latents_twice`. ``windows``: layers with a sliding window
    forget what is behind it, or (False) keep all. ``code_bits``: keys, values and latents are kept by codes of so many
    bits, in groups with a scale each; 0: as numbers. ``unpacks``: codes are made numbers in memory before they are
    attended to, as they are anyway in layers without a step program. What an indexer, compressed attention and
    recurrent mixers keep stays numbers.
    """

    element_bytes: float = 2.0
    latents: bool = True
    windows: bool = True
    code_bits: int = 0
    unpacks: bool = False

    def row_bytes(self, width: int) -> float:
        """Bytes of a key, a value or a latent of ``width`` numbers."""
        if not self.code_bits:
            return width * self.element_bytes
        return -(-width // CACHE_GROUP) * (CACHE_GROUP * self.code_bits / 8 + SCALE_BYTES)


COMPACT = CachePolicy()
"""Cache geometry of other engines (vLLM, mlx-lm, llama.cpp) with 16-bit numbers."""
BUILT_IN = CachePolicy(latents=False, windows=False)
"""Cache geometry of the built-in engine (see engine/rank/attention.py), here with 16-bit numbers (see
`Runtime.cache_of`)."""


@dataclass(frozen=True)
class AttentionSpec:
    """One layer's attention.

    ``key_width`` and ``value_width``: numbers per head as attention sees them (latent attention: expanded).
    ``window``: how many tokens back a token sees, itself included; None: all. Of chunked attention (Llama 4) it is the
    chunk, the most that a token sees. ``latent_width``: numbers per token that latent attention (DeepSeek-V2, 2024)
    must keep: the latent and the rotary part of the key; ``latent_rank``: those of them that also stand for the value.
    ``latents_twice``: the built-in engine's step program for this family keeps those twice. ``shared_cache``: reads the
    keys and values of an earlier layer and keeps none. ``both_ways``: a token sees later ones too (an encoder's), with
    a ``window`` as many, and nothing is kept. ``most``: tokens that a token attends to where an indexer chooses them
    (DeepSeek-V3.2, 2025), by ``index_heads`` queries and a key of ``index_width`` numbers, kept, too.

    Compressed attention (DeepSeek-V4, 2026) has one key for all heads, which is the value, too. It keeps ``newest``
    numbers of a sequence however long it is (keys of the window, and what entries are being made of), and of each
    ``rate`` tokens one entry (0: none), of which ``most`` are attended to. ``groups``: of heads, in the output's first
    projection.
    """

    kind: AttentionKind
    query_heads: int
    key_value_heads: int
    key_width: int
    value_width: int
    window: int | None = None
    latent_width: int = 0
    latent_rank: int = 0
    latents_twice: bool = False
    shared_cache: bool = False
    both_ways: bool = False
    most: int | None = None
    index_heads: int = 0
    index_width: int = 0
    newest: int = 0
    rate: int = 0
    groups: int = 0

    def seen(self, tokens: int) -> int:
        """Number of the last ``tokens`` tokens that are attended to."""
        return tokens if self.window is None else min(tokens, self.window)

    @property
    def elements(self) -> float:
        """Numbers per token, those that are kept twice counted once; of entries, on average."""
        return self.token_bytes(CachePolicy(element_bytes=1.0))

    def token_bytes(self, policy: CachePolicy = COMPACT, share: float = 1.0) -> float:
        """Bytes per token on a rank with ``share`` of the key/value heads; of entries, on average. Latents have no
        heads, so every rank keeps all of them."""
        if self.kind == "compressed":
            return (self.key_width + self.index_width) / self.rate * policy.element_bytes if self.rate else 0.0
        if self.kind == "latent":
            twice = self.latents_twice and not policy.latents
            second = policy.row_bytes(-(-self.latent_rank // VECTOR) * VECTOR) if twice else 0.0
            return self.index_width * policy.element_bytes + policy.row_bytes(self.latent_width) + second
        return self.key_value_heads * (policy.row_bytes(self.key_width) + policy.row_bytes(self.value_width)) * share

    def cache_bytes(self, tokens: int, policy: CachePolicy = COMPACT, share: float = 1.0) -> float:
        """Bytes that one sequence of ``tokens`` tokens takes on a rank with ``share`` of the key/value heads."""
        if self.shared_cache or self.both_ways:
            return 0.0
        kept = self.seen(tokens) if policy.windows and self.kind != "compressed" else tokens
        return self.token_bytes(policy, share) * kept

    def read_bytes(self, tokens: int, policy: CachePolicy = COMPACT, share: float = 1.0) -> float:
        """Bytes of the cache that one new token reads when its sequence has ``tokens`` tokens."""
        if self.both_ways:
            return 0.0
        if self.kind == "compressed":
            entries = tokens / self.rate if self.rate else 0.0
            chosen = entries if self.most is None else min(entries, self.most)
            return (self.index_width * entries + self.key_width * chosen) * policy.element_bytes
        if self.most is not None and tokens > self.most:
            index = self.index_width * policy.element_bytes
            return index * tokens + (self.token_bytes(policy, share) - index) * self.most
        return self.token_bytes(policy, share) * self.seen(tokens)

    def flops(self, tokens: int, past: int = 0) -> int:
        """Floating point operations of scores and weighted sums for ``tokens`` new tokens after ``past`` ones.

        Each pair of a query and a key that it sees costs 2 operations per number of the key and of the value, in
        every query head (causal: half the square; ``both_ways``: all of it).
        """
        if self.kind == "compressed":
            near, far = _pairs(tokens, past, self.window), self._entries(tokens, past, self.most)
            attended = 2 * self.query_heads * (self.key_width + self.value_width) * (near + far)
            return attended + 2 * self.index_heads * self.index_width * self._entries(tokens, past, None)
        if self.both_ways:
            pairs = tokens * (tokens if self.window is None else min(tokens, 2 * self.window))
            return 2 * self.query_heads * (self.key_width + self.value_width) * pairs
        seen = self.window if self.most is None else self.most
        attended = 2 * self.query_heads * (self.key_width + self.value_width) * _pairs(tokens, past, seen)
        return attended + 2 * self.index_heads * self.index_width * _pairs(tokens, past, None)

    def absorbed_flops(self, past: int) -> int:
        """Operations that one token after ``past`` ones takes more where its queries meet the latents themselves, which
        are wider than the keys and values that would have to be made of them again."""
        if self.kind != "latent":
            return 0
        wider = self.latent_width + self.latent_rank - self.key_width - self.value_width
        return 2 * self.query_heads * wider * _pairs(1, past, self.window if self.most is None else self.most)

    def _entries(self, tokens: int, past: int, most: int | None) -> int:
        """Pairs of a query and an entry that it sees."""
        return _pairs(tokens, past, None if most is None else most * self.rate) // self.rate if self.rate else 0

    def state_bytes(self, element_bytes: float) -> float:
        """Bytes kept of one sequence, however long it is."""
        return self.newest * element_bytes


def _pairs(tokens: int, past: int, most: int | None) -> int:
    """Pairs of a query and a key that it sees, ``most`` of them for each query."""
    if most is None or past + tokens <= most:
        return tokens * past + tokens * (tokens + 1) // 2
    growing = max(0, min(tokens, most - past))
    return growing * past + growing * (growing + 1) // 2 + (tokens - growing) * most


@dataclass(frozen=True)
class ExpertsSpec:
    """A layer's routed experts. ``width``: the inner size of one. ``cut``: what the tensor parallel plan gives a rank,
    a slice of every expert (``inside``) or some experts (``whole``); None: the plan leaves them on every rank."""

    count: int
    per_token: int
    width: int
    cut: Literal["inside", "whole"] | None = "inside"

    def touched(self, tokens: float) -> float:
        """Expected number of different experts that a batch of ``tokens`` tokens needs, if each token's choice is
        ``per_token`` of ``count`` at random: ``E * (1 - (1 - k/E)^B)``, the coupon collector with k coupons a draw. As
        routers have favourites, tokens of one batch choose as fewer, ``B^FAVOURITES`` of them, would at random.
        """
        missed = math.pow(1.0 - self.per_token / self.count, math.pow(max(0.0, tokens), FAVOURITES))
        return self.count * (1.0 - missed)


@dataclass(frozen=True)
class Collective:
    """One collective that tensor parallelism needs. ``width``: numbers per token of its whole result, each as wide
    as the model's activations."""

    kind: Literal["all_reduce", "all_gather", "gather"]
    width: int


@dataclass(frozen=True)
class LayerWeights:
    """A layer's weights by kind. ``attention``: all of attention but ``key_value``, the key and value projections
    (shared out by key/value head; ``attention`` by query head). ``mixer``: a recurrent one. ``routed`` and ``shared``:
    experts; the router is ``other``."""

    attention: Weights = field(default_factory=Weights)
    key_value: Weights = field(default_factory=Weights)
    mixer: Weights = field(default_factory=Weights)
    dense: Weights = field(default_factory=Weights)
    routed: Weights = field(default_factory=Weights)
    shared: Weights = field(default_factory=Weights)
    norm: Weights = field(default_factory=Weights)
    other: Weights = field(default_factory=Weights)

    @cached_property
    def total(self) -> Weights:
        mixing, dense = self.attention + self.key_value + self.mixer, self.dense + self.routed + self.shared
        return mixing + dense + self.norm + self.other

    @property
    def in_engine(self) -> LayerWeights:
        """As of `Weights`."""
        return LayerWeights(**{each.name: getattr(self, each.name).in_engine for each in fields(self)})


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer.

    ``attention`` and ``mixer``: what it has of both; layers of some families have none, of others both side by side.
    ``experts``: None for a dense layer. ``width``: the inner size of its dense part (or shared experts), 0 where it
    has none. ``heads_cut``: tensor parallel ranks compute, and cache, only their heads; where it is False each rank
    has all of them. ``collectives``: what one pass through the layer exchanges when it is cut over ranks, in order.
    ``program_operations``: of the built-in engine's step program; None: it has none for this family.
    """

    weights: LayerWeights
    attention: AttentionSpec | None
    mixer: MixerSpec | None = None
    experts: ExpertsSpec | None = None
    width: int = 0
    heads_cut: bool = True
    collectives: tuple[Collective, ...] = ()
    program_operations: int | None = None

    @cached_property
    def bytes(self) -> int:
        return sum(getattr(self.weights, each.name).bytes for each in fields(self.weights))

    @property
    def in_engine(self) -> LayerSpec:
        """The same with the bytes that the built-in engine holds."""
        return replace(self, weights=self.weights.in_engine)

    @property
    def parameters(self) -> int:
        return self.weights.total.parameters

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but the routed experts that it is not sent to."""
        if self.experts is None:
            return self.parameters
        routed = self.weights.routed.parameters
        return self.parameters - routed + routed * self.experts.per_token // self.experts.count

    def held_bytes(self, share: Share = WHOLE) -> int:
        """Bytes of weights on a rank with ``share`` of this layer."""
        found = self._held.get(share)
        if found is None:
            found = self._held[share] = self._held_bytes(share)
        return found

    @cached_property
    def _held(self) -> dict[Share, int]:
        """Searches ask for the same shares thousands of times."""
        return {}

    def _held_bytes(self, share: Share) -> int:
        return (
            self.weights.attention.held(share.query)
            + self.weights.key_value.held(self._key_value(share) if self.heads_cut else share.query)
            + self.weights.mixer.held(share.query)
            + self.weights.dense.held(share.width)
            + self.weights.routed.held(share.experts)
            + self.weights.shared.held(share.shared)
            + self.weights.norm.held(share.width)
            + self.weights.other.held(share.width)
        )

    def flops(self, tokens: int, past: int = 0) -> int:
        """Floating point operations of ``tokens`` new tokens of one sequence after ``past`` ones that ranks share out:
        2 per active parameter and token (one multiplication, one addition), and attention."""
        attended = 0 if self.attention is None else self.attention.flops(tokens, past)
        return 2 * self.active_parameters * tokens + attended

    def recurrence_flops(self, tokens: int) -> int:
        """More of them that every rank of a tensor parallel group does."""
        return 0 if self.mixer is None else self.mixer.flops(tokens)

    def cache_bytes(self, tokens: int, policy: CachePolicy = COMPACT, share: Share = WHOLE) -> float:
        """Bytes of keys and values that one sequence of ``tokens`` tokens takes on a rank with ``share`` of this
        layer."""
        return 0.0 if self.attention is None else self.attention.cache_bytes(tokens, policy, self._key_value(share))

    def cache_read_bytes(self, tokens: int, policy: CachePolicy = COMPACT, share: Share = WHOLE) -> float:
        """Bytes of the cache that one new token reads there when its sequence has ``tokens`` tokens. A state is written
        as well."""
        read = 0.0 if self.attention is None else self.attention.read_bytes(tokens, policy, self._key_value(share))
        if self.attention is not None and policy.code_bits and (policy.unpacks or self.program_operations is None):
            numbers = replace(policy, code_bits=0)  # written, and read again
            read += 2 * self.attention.read_bytes(tokens, numbers, self._key_value(share))
        return read + 2 * self.state_bytes(policy)

    def state_bytes(self, policy: CachePolicy = COMPACT) -> float:
        """Bytes kept of one sequence, however long it is, on each rank that has the layer: by a recurrent mixer, and by
        compressed attention."""
        kept = 0.0 if self.mixer is None else self.mixer.state_bytes(policy.element_bytes)
        return kept if self.attention is None else kept + self.attention.state_bytes(policy.element_bytes)

    def _key_value(self, share: Share) -> float:
        if not self.heads_cut or self.attention is None:
            return 1.0
        return max(share.key_value, 1 / self.attention.key_value_heads)

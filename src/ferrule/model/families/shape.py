"""From ``config.json`` to the shape of a model: what every layer is made of, by the names of one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ferrule.errors import ConfigError
from ferrule.model.families.compressed import compressed_attention, hashed
from ferrule.model.families.encoders import is_encoder, padding_positions
from ferrule.model.families.family import ANY, FAMILIES, SEEING, Cuts, Family
from ferrule.model.families.fields import Fields
from ferrule.model.families.mixers import Part, listed_layers, mixer_of, parts_of
from ferrule.model.families.program import has_program, program_operations
from ferrule.model.layer import AttentionSpec, ExpertsSpec
from ferrule.model.mixer import MixerSpec

MAX_LAYERS = 4096
_OLD_NAMES = {
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "ffn_dim": "intermediate_size",
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
}
"""Other names of the same fields (GPT-2, OPT, DBRX, DistilBERT)."""

_STORED = ("dtype", "torch_dtype", "quantization_config", "quantization")
"""Fields that are said of a whole model, and hold for its language model."""

_BY_LAYER = ("intermediate_size", "moe_intermediate_size", "num_experts_per_tok", "moe_topk", "num_key_value_heads")
"""Fields that some models have as a list, with a number for each layer."""
_TIED = ("tie_embedding", "tie_word_embeddings")
_DENSE_WIDTH = ("intermediate_size_mlp", "intermediate_size")
_SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)
"""Names of the same fields: of LFM2 and the others; of Llama 4 and these; of Qwen, Nemotron-H and Granite."""


@dataclass(frozen=True)
class LayerShape:
    """``width``: of the dense part; ``shared_width``: of all shared experts together; 0 where there is none.
    ``attention``, ``mixer`` and ``program_operations``: see `LayerSpec`. ``hashed``: a token by itself chooses experts.
    """

    attention: AttentionSpec | None
    mixer: MixerSpec | None
    experts: ExpertsSpec | None
    width: int
    shared_width: int
    program_operations: int | None
    hashed: bool = False


@dataclass(frozen=True)
class Shape:
    """A model's sizes. ``fields``: the text model's configuration, for what only one family has. ``known``: its family
    is listed here. ``sees``: it takes images. ``other_layers``: kinds of layers that are neither attention nor known
    otherwise. ``encoder``: its tokens see later ones."""

    architecture: str
    model_type: str
    family: Family
    known: bool
    fields: Fields
    hidden_size: int
    vocab_size: int
    max_context: int
    tied: bool
    layers: tuple[LayerShape, ...]
    query_heads: int
    key_value_heads: int
    multimodal: bool
    sees: bool
    other_layers: tuple[str, ...]
    encoder: bool = False

    @property
    def named(self) -> str:
        """The family, in messages."""
        return f"model_type {self.model_type!r}" if self.model_type else f"{self.architecture} (without a model_type)"

    @property
    def streams(self) -> int:
        """As of `ModelSpec`."""
        return self.fields.integer("hc_mult") if self.family.attention == "compressed" else 1

    @property
    def expert_inputs(self) -> int:
        """Numbers of a token that experts see: fewer than the hidden size where they are between two projections."""
        return self.fields.maybe("moe_latent_size") or self.hidden_size

    def has(self, rule: bool | str) -> bool:
        return self.family.has(rule, self.fields.data)


def read_shape(config: object, file: str, cuts: Cuts | None = None) -> Shape:
    """Shape of the model of ``config`` (a parsed ``config.json``; ``file`` names it in errors). ``cuts``: instead of
    the family's.

    Raises `ConfigError` naming the field that is missing or cannot be.
    """
    whole = Fields(config, file)
    text = whole.within("text_config") or whole.within("llm_config")
    source = text or whole
    model_type = source.text("model_type") or whole.text("model_type")
    family = FAMILIES.get(model_type, ANY)
    family = family if cuts is None else replace(family, cuts=cuts)
    stored = {name: whole.data.get(name) for name in _STORED if source.data.get(name) is None}
    fields = Fields({**_renamed(source.data), **stored}, source.file, family.defaults)
    layers = listed_layers(fields, family) if model_type == "nemotron_h" else None
    layers = layers or fields.integer("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise fields.error("num_hidden_layers", f"is more than the {MAX_LAYERS} that any model has")
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    parts, mixer = parts_of(fields, family, layers), mixer_of(fields, family, hidden)
    shape = tuple(_layer(fields, family, index, parts, mixer, hidden, heads) for index in range(layers))
    sees = text is not None and whole.text("model_type") in SEEING
    if sees:  # which runs by transformers' modules
        shape = tuple(replace(layer, program_operations=None) for layer in shape)
    _, named = whole.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else model_type or "unknown"
    return Shape(
        architecture=architecture,
        model_type=model_type,
        family=family,
        known=model_type in FAMILIES,
        fields=fields,
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        max_context=_context(fields),
        tied=source.flag(*_TIED, default=whole.flag(*_TIED, default=family.tied)),
        layers=shape,
        query_heads=heads,
        key_value_heads=min((each.attention.key_value_heads for each in shape if each.attention), default=heads),
        multimodal=text is not None,
        sees=sees,
        other_layers=_other_layers(fields, family, layers),
        encoder=is_encoder(fields.data.get),
    )


def _other_layers(fields: Fields, family: Family, layers: int) -> tuple[str, ...]:
    if family.mixer is not None or family.attention == "compressed":  # which refuse other kinds
        return ()
    known = {"full_attention", "sliding_attention"}
    if family.window == "chunks":
        known.add("chunked_attention")
    if family.indexer:
        known.add("indexed_attention")
    return tuple(sorted({str(kind) for kind in fields.each("layer_types", layers) or ()} - known))


def _renamed(data: Mapping[str, Any]) -> Mapping[str, Any]:
    flat = {**data, **{new: data[old] for old, new in _OLD_NAMES.items() if old in data and new not in data}}
    attention, experts = data.get("attn_config"), data.get("ffn_config")  # DBRX
    if isinstance(attention, Mapping):
        flat["num_key_value_heads"] = attention.get("kv_n_heads")
    if isinstance(experts, Mapping):
        flat["num_experts"] = experts.get("moe_num_experts")
        flat["num_experts_per_tok"] = experts.get("moe_top_k")
        flat["intermediate_size"] = experts.get("ffn_hidden_size")
    return flat


def _context(fields: Fields) -> int:
    longest = fields.integer("max_position_embeddings", "model_max_length", default=1 << 20)
    longest = max(1, longest - padding_positions(fields.data.get))
    name, rope = fields.get("rope_parameters", "rope_scaling")
    if isinstance(rope, Mapping):
        for each in (value for value in rope.values() if isinstance(value, Mapping)):
            if "longrope" in (each.get("rope_type"), each.get("type")):  # see engine.architectures.longest_context
                inner = Fields({**fields.data, **each}, f"{fields.file}: {name}")
                longest = min(longest, inner.integer("original_max_position_embeddings", default=longest))
    return longest


def _layer(
    fields: Fields, family: Family, index: int, parts: list[Part], mixer: MixerSpec | None, hidden: int, heads: int
) -> LayerShape:
    part, layers = parts[index], len(parts)
    listed = {name: fields.each(name, layers) for name in _BY_LAYER if isinstance(fields.get(name)[1], list)}
    if listed:
        own = {name: values[index] for name, values in listed.items() if values}
        fields = Fields({**fields.data, **own}, fields.file, fields.defaults)
    one_part = fields.get("model_type")[1] == "nemotron_h"
    experts = _experts(fields, family, index, layers) if not one_part or part == "sparse" else None
    width = shared = 0
    if experts is not None:
        count = fields.integer("n_shared_experts", "num_shared_experts", default=0, least=0)
        shared = fields.integer(*_SHARED_WIDTH, default=count * experts.width, least=0)
    elif not one_part or part == "dense":
        width = _dense_width(fields, hidden)
    attention = _attention(fields, family, index, layers, hidden, heads) if part in ("attention", "both") else None
    encoder = is_encoder(fields.data.get)
    if encoder and attention is not None:
        attention = replace(attention, both_ways=True)
    operations = None if encoder else program_operations(fields, family, attention, experts, shared)
    by_token = family.attention == "compressed" and hashed(fields, index, layers)
    mixing = mixer if part in ("mixer", "both") else None
    return LayerShape(attention, mixing, experts, width, shared, operations, by_token)


def _dense_width(fields: Fields, hidden: int) -> int:
    model_type = fields.get("model_type")[1]
    if model_type == "granitemoehybrid":  # what is beside experts, where there are any, is alone
        return fields.integer("shared_intermediate_size")
    names = ("block_ff_dim", "intermediate_size") if model_type == "lfm2" else _DENSE_WIDTH
    width = fields.integer(*names, default=-1 if model_type in FAMILIES else 4 * hidden)
    if model_type == "lfm2" and fields.flag("block_auto_adjust_ff_dim", default=True):
        _, factor = fields.get("block_ffn_dim_multiplier")
        if not isinstance(factor, int | float | None) or not 0 < (factor or 1) < 64:
            raise fields.error("block_ffn_dim_multiplier", "is not between 0 and 64")
        multiple = fields.integer("block_multiple_of", default=256)
        return -(-int((1.0 if factor is None else factor) * (2 * width // 3)) // multiple) * multiple
    return width


def _experts(fields: Fields, family: Family, index: int, layers: int) -> ExpertsSpec | None:
    """The routed experts of layer ``index``; None where it is a dense one."""
    count = fields.integer(
        "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", default=0, least=0
    )
    kinds = fields.each("mlp_layer_types", layers)
    if count == 0 or (kinds is not None and kinds[index] == "dense"):
        return None
    if kinds is None:
        only_dense, only_sparse = fields.get("mlp_only_layers")[1], fields.get("moe_layers")[1]
        if isinstance(only_sparse, list):
            return _routed(fields, family, count) if index in only_sparse else None
        first = fields.integer("first_k_dense_replace", "num_dense_layers", default=0, least=0)
        step = fields.integer("decoder_sparse_step", "interleave_moe_layer_step", default=1)
        if index < first or (isinstance(only_dense, list) and index in only_dense) or (index + 1) % step:
            return None
        if isinstance(fields.get("moe_layer_freq")[1], list):
            if not (fields.each("moe_layer_freq", layers) or [])[index]:
                return None
        elif index % fields.integer("moe_layer_freq", default=1):
            return None
    return _routed(fields, family, count)


def _routed(fields: Fields, family: Family, count: int) -> ExpertsSpec:
    per_token = fields.integer("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
    if per_token > count:
        raise fields.error("num_experts_per_tok", f"is more than the {count} experts there are")
    width = fields.integer("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    return ExpertsSpec(count, per_token, width, family.cuts.experts)


def _attention(fields: Fields, family: Family, index: int, layers: int, hidden: int, heads: int) -> AttentionSpec:
    if family.attention == "compressed":
        return compressed_attention(fields, index, layers, heads)
    window = _window(fields, family, index, layers)
    if family.attention == "latent" or fields.get("kv_lora_rank")[1] is not None:
        rank = fields.integer("kv_lora_rank")
        rotary, plain = fields.integer("qk_rope_head_dim", least=0), fields.integer("qk_nope_head_dim")
        value = fields.integer("v_head_dim", default=hidden // heads)
        latent = AttentionSpec(
            "latent", heads, heads, rotary + plain, value, window, rank + rotary, rank, has_program(fields)
        )
        return _indexed(latent, fields, index, layers) if family.indexer else latent
    key_value = fields.integer("num_key_value_heads", default=heads)
    width = fields.maybe("head_dim", "attention_head_dim")
    if width is None:
        if hidden % heads:
            raise ConfigError(f"{fields.file}: hidden_size {hidden} does not divide by num_attention_heads {heads}")
        width = hidden // heads
    if window is not None and fields.get("model_type")[1] == "mimo_v2_flash":
        key_value = fields.integer("swa_num_key_value_heads", default=2 * key_value)
    if heads % key_value:
        raise ConfigError(f"{fields.file}: num_attention_heads {heads} does not divide by {key_value} key/value heads")
    sharing = fields.integer("num_kv_shared_layers", default=0, least=0)
    return AttentionSpec(
        kind="full" if window is None else "chunked" if family.window == "chunks" else "sliding",
        query_heads=heads,
        key_value_heads=key_value,
        key_width=width,
        value_width=fields.integer("v_head_dim", default=width),
        window=window,
        shared_cache=index >= layers - sharing,
    )


def _window(fields: Fields, family: Family, index: int, layers: int) -> int | None:
    if family.window == "chunks":
        return _chunk(fields, index, layers)
    window = fields.maybe("sliding_window", least=0)
    if not window or family.window is None:
        return None
    kinds = fields.each("layer_types", layers)
    if kinds is not None:
        return window if kinds[index] == "sliding_attention" else None
    if family.window == "late":
        late = index >= fields.integer("max_window_layers", default=0, least=0)
        return window if fields.flag("use_sliding_window", default=False) and late else None
    if family.window == "all":
        return window
    pattern = fields.each("hybrid_layer_pattern", layers)
    if pattern is not None:
        return window if pattern[index] else None
    period = fields.integer("sliding_window_pattern", "global_attn_every_n_layers", default=int(family.window))
    whole = (index + 1) % period == 0 or (index == 0 and "v_head_dim" in family.defaults)
    return None if whole else window


def _chunk(fields: Fields, index: int, layers: int) -> int | None:
    """Layers with rotary positions see one chunk, those without all tokens (Llama 4)."""
    none = fields.data.get("attention_chunk_size", 0) is None
    chunk = None if none else fields.maybe("attention_chunk_size", least=0)
    kinds, rotary = fields.each("layer_types", layers), fields.get("no_rope_layers")[1] or None
    if kinds is not None:
        return chunk if kinds[index] == "chunked_attention" else None
    if rotary is not None:
        turned = (fields.each("no_rope_layers", layers) or [])[index]
    else:
        turned = (index + 1) % fields.integer("no_rope_layer_interval") != 0
    return (chunk or None) if turned else None


def _indexed(attention: AttentionSpec, fields: Fields, index: int, layers: int) -> AttentionSpec:
    """``attention`` of layer ``index`` with what its indexer adds; some layers take the choice of an earlier one."""
    found = replace(attention, most=fields.integer("index_topk"))
    if not _chooses(fields, index, layers):
        return found
    return replace(found, index_heads=fields.integer("index_n_heads"), index_width=fields.integer("index_head_dim"))


def _chooses(fields: Fields, index: int, layers: int) -> bool:
    kinds = fields.each("indexer_types", layers)
    if kinds is not None:
        return bool(kinds[index] == "full")
    _, pattern = fields.get("index_topk_pattern")
    if isinstance(pattern, str | list) and len(pattern) > index:
        return pattern[index] in ("F", "full")
    every = max(1, fields.integer("index_topk_freq", default=1, least=0))
    offset = fields.integer("index_skip_topk_offset", default=2, least=0)
    return max(index - offset + 1, 0) % every == 0

"""Roles of tensors by their names: those of transformers' models, of mlx-lm's and of GGUF files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ferrule.model.families.family import Cuts
from ferrule.model.layer import Kind

Place = Literal["embedding", "head", "final", "vision", "elsewhere"]

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks|blk)\.(\d+)\.(.+)$")
_NO_WEIGHT = re.compile(
    r"rotary_emb\.inv_freq|rotary_pos_emb|(?:^|\.)(?:position|token_type)_ids$|\.attention\.(?:bias|masked_bias)$|(?:^|\.)rope_(?:freqs|factors)"
)
_OTHER_PART = re.compile(r"(?:^|\.)(?:mtp|visual|vision\w*|audio\w*|multi_modal\w*|mm_\w*|embed_(?:vision|audio))\.")
_VISION = re.compile(r"(?:^|\.)(?:visual|vision\w*|multi_modal\w*|mm_\w*|embed_vision)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens\w*|embed_in|embed|wte|wpe|token_embd|embeddings?|word_embeddings)\.")
_HEAD = re.compile(
    r"(?:(?:^|\.)(?:lm_head|embed_out|output)|^head)\.(?:weight|bias|scales|biases|base_layer|qweight|qzeros|g_idx)"
)

_HEAD_NORM = re.compile(r"\b([qk])_norm\.")
_NORM = re.compile(r"norm|(?:^|\.)ln_\w+\.")
_EXPERTS = re.compile(
    r"(?:^|\.)(?:experts|switch_mlp|switch_glu)\.|ffn_\w+_exps\.|block_sparse_moe\.(?:input|output)_linear\."
)
_SHARED = re.compile(r"shared_experts?\.|shared_mlp\.|ffn_\w+_shexp\.")
_ROUTER = re.compile(
    r"(?:mlp|block_sparse_moe|feed_forward|moe|ffn|mixer)\.(?:gate|router)\b|(?:^|\.)router\.|shared_expert_gate"
    r"|expert_bias|e_score_correction_bias|ffn_gate_inp|exp_probs_b"
)
_ATTENTION = re.compile(r"(?:^|\.)(?:self_attn|attention|attn|self_attention)\.|^attn_")
_FUSED = re.compile(r"qkv_proj|query_key_value|Wqkv|attn_qkv|c_attn|\.qkv\.")
_KEY_VALUE = re.compile(r"\.(?:k_proj|v_proj|kv_b_proj|embed_q|unembed_out)\.|attn_(?:k|v|kv_b|k_b|v_b)\.")
_LATENT = re.compile(
    r"\.(?:indexer|compressor)\.|\.(?:wq_a|wkv|kv_proj|q_a_proj|kv_a_proj_with_mqa)\.|attn_(?:q_a|kv_a_mqa)\.|\.gate_proj\.|attn_gate\."
)
_LATENTS_OUT = re.compile(r"\.(?:kv_b_proj|attn_kv_b|attn_k_b|attn_v_b)\.")
_SINKS = re.compile(r"sinks?\b|sink_bias")
_ROW_BIAS = re.compile(r"(?:o_proj|out_proj|dense|down_proj|c_proj|dense_4h_to_h|fc2|attn_output|ffn_down)\.bias$")
_MLP = re.compile(r"(?:^|\.)(?:mlp|feed_forward|ffn|block_sparse_moe)\.|^ffn_")
_MIXER = re.compile(r"^(?:linear_attn|mamba|conv|shortconv)\.|^ssm_")
_PROJECTION = re.compile(r"\.(?:in_proj\w*|out_proj)\.|^ssm_(?:in|ba|out)\.")
_PART = re.compile(r"^(?:mixer|self_attn)\.")


@dataclass(frozen=True)
class Role:
    """Role of a tensor of a layer. ``fused``: query, key and value in one. ``cut``: whether a plan that shares out its
    kind shares it out too (biases added after a sum, latents and routers stay whole)."""

    kind: Kind
    cut: bool = False
    fused: bool = False
    sinks: bool = False


def is_no_weight(name: str) -> bool:
    """Whether tensor ``name`` is stored by some, and computed from the configuration by all."""
    return _NO_WEIGHT.search(name) is not None


def layer_of(name: str) -> tuple[int, str] | None:
    """The layer's number and the name within it, or None for a tensor of no layer."""
    found = None if _OTHER_PART.search(name) else _LAYER.search(name)
    return (int(found[1]), found[2]) if found else None


def place_of(name: str) -> Place | None:
    """Place of a tensor of no layer; ``vision``, ``elsewhere``: in another part than the language model (multi-token
    prediction); None: it is no weight."""
    if _NO_WEIGHT.search(name):
        return None
    if _OTHER_PART.search(name):
        return "vision" if _VISION.search(name) else "elsewhere"
    if _HEAD.search(name):
        return "head"
    return "embedding" if _EMBEDDING.search(name) else "final"


def is_router(name: str) -> bool:
    """Whether a layer's tensor, by its ``name`` within the layer, chooses experts."""
    return _ROUTER.search(name) is not None


def is_latents(name: str) -> bool:
    """Whether tensor ``name`` projects the latents of latent attention to keys and values."""
    return _LATENTS_OUT.search(name) is not None


def named_by_part(name: str, *, attention: bool, mixer: bool) -> str:
    """``name`` within a layer of these parts, by the part where a family calls all of them alike: Nemotron-H's
    ``mixer`` is attention, a recurrent mixer, experts or a dense part, and Kimi Linear's ``self_attn`` one of the first
    two."""
    if attention and mixer:
        return name
    own = "self_attn." if attention else "linear_attn." if mixer else "mlp."
    return _PART.sub(own, name)


def role_of(name: str, cuts: Cuts) -> Role | None:
    """Role of a layer's tensor, by its ``name`` within the layer; None: it is no weight."""
    if _NO_WEIGHT.search(f".{name}"):
        return None
    if is_router(name):
        return Role("other")
    if _MIXER.search(name):
        return Role("mixer", cut=_PROJECTION.search(name) is not None)
    if _SHARED.search(name):
        return Role("shared", cut=not _ROW_BIAS.search(name))
    if _EXPERTS.search(name):
        return Role("routed", cut=True)
    leaf = name.rpartition("attn.")[2] if "norm_attn_norm" in name else name  # DBRX's block of norm, attention, norm
    if _NORM.search(leaf):
        by_head = _HEAD_NORM.search(name) if cuts.norms else None
        return Role("norm") if by_head is None else Role("attention" if by_head[1] == "q" else "key_value", cut=True)
    if _ATTENTION.search(name):
        if _SINKS.search(name):
            return Role("attention", cut=True, sinks=True)
        if _LATENT.search(f".{name}"):
            return Role("attention")
        if _KEY_VALUE.search(f".{name}"):
            return Role("key_value", cut=True)
        return Role("attention", cut=not _ROW_BIAS.search(name), fused=_FUSED.search(name) is not None)
    if _MLP.search(name):
        return Role("dense", cut=not _ROW_BIAS.search(name))
    return Role("other")

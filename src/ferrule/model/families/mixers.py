"""Recurrent mixers by ``config.json``: which layers have one instead of attention, and its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ferrule.errors import ConfigError
from ferrule.model.families.family import Family
from ferrule.model.families.fields import Fields
from ferrule.model.mixer import MixerSpec

Part = Literal["attention", "mixer", "both", "dense", "sparse"]
"""Part that a layer has before its dense part or experts; layers of Nemotron-H have one of all these, and no more."""
_PARTS: dict[str, Part] = {
    **dict.fromkeys(("full_attention", "attention", "*"), "attention"),
    **dict.fromkeys(("linear_attention", "mamba", "conv", "M"), "mixer"),
    "hybrid": "both",
    **dict.fromkeys(("mlp", "-"), "dense"),
    **dict.fromkeys(("moe", "E"), "sparse"),
}
"""By the names that configurations have for them."""
_PATTERN = "hybrid_override_pattern"
_LISTED = ("layer_types", "layers_block_type", _PATTERN)


def listed_layers(fields: Fields, family: Family) -> int | None:
    """Number of layers that a list of them tells; None where there is none."""
    _, told = fields.get(*_LISTED) if family.mixer is not None else ("", None)
    return len(told) if isinstance(told, list | str) else None


def parts_of(fields: Fields, family: Family, layers: int) -> list[Part]:
    """By layer. Raises `ConfigError` for a kind of layer that the family does not have."""
    if family.mixer is None:
        return ["attention"] * layers
    name, told = fields.get(*_LISTED)
    if told is None:
        return [_untold(fields, family, index) for index in range(layers)]
    kinds = list(fields.text(name)) if name == _PATTERN else [str(kind) for kind in fields.each(name, layers) or []]
    unknown = next((kind for kind in kinds if kind not in _PARTS), None)
    if unknown is not None:
        model_type, known = fields.text("model_type"), ", ".join(_PARTS)
        raise ConfigError(f"{fields.file}: {name} has {unknown!r}; a layer of {model_type} is one of {known}")
    return [_PARTS[kind] for kind in kinds]


def _untold(fields: Fields, family: Family, index: int) -> Part:
    """Layer ``index`` of a configuration without a list, as transformers takes it."""
    if family.mixer == "delta":
        return "mixer" if (index + 1) % fields.integer("full_attention_interval") else "attention"
    if family.mixer == "convolution":
        whole = _numbers(fields, "full_attn_idxs")
        return "attention" if whole is None or index in whole else "mixer"
    if family.mixer == "kda":
        inner = fields.within("linear_attn_config")
        whole = None if inner is None else _numbers(inner, "full_attn_layers")
        full = index > 0 and index % 4 == 0 if whole is None else index + 1 in whole
        return "attention" if full else "mixer"
    return "both" if fields.text("model_type") == "falcon_h1" else "mixer"


def _numbers(fields: Fields, name: str) -> list[Any] | None:
    _, told = fields.get(name)
    if told is not None and not isinstance(told, list):
        raise fields.error(name, "is no list")
    return told


def mixer_of(fields: Fields, family: Family, hidden: int) -> MixerSpec | None:
    """The mixer of all layers that have one. ``hidden``: the model's hidden size."""
    match family.mixer:
        case "convolution":
            return MixerSpec("convolution", hidden, fields.integer("conv_L_cache"))
        case "delta":
            key, value = delta_widths(fields)
            state = value * fields.integer("linear_key_head_dim")
            return MixerSpec("delta", 2 * key + value, fields.integer("linear_conv_kernel_dim"), state)
        case "kda":
            heads, width, kernel = kda_sizes(fields)
            return MixerSpec("kda", 3 * heads * width, kernel, heads * width * width)
        case "mamba2":
            inner, _, groups = mamba_sizes(fields, hidden)
            state = fields.integer("mamba_d_state", "ssm_state_size")
            kernel = fields.integer("mamba_d_conv", "conv_kernel")
            return MixerSpec("mamba2", inner + 2 * groups * state, kernel, inner * state)
    return None


def delta_widths(fields: Fields) -> tuple[int, int]:
    """Numbers of all keys and of all values of a token (Gated DeltaNet)."""
    key = fields.integer("linear_num_key_heads") * fields.integer("linear_key_head_dim")
    return key, fields.integer("linear_num_value_heads") * fields.integer("linear_value_head_dim")


def kda_sizes(fields: Fields) -> tuple[int, int, int]:
    """Heads, numbers of each, and the convolutions' kernel. What was published says it in an object of its own."""
    told = fields.get("linear_attn_config")[1]
    own: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    names = {"num_heads": "linear_num_heads", "head_dim": "linear_head_dim"}
    names["short_conv_kernel_size"] = "linear_conv_kernel_dim"
    taken = {new: own[old] for old, new in names.items() if old in own}
    inner = Fields({**fields.data, **taken}, fields.file, fields.defaults)
    heads, width, kernel = (inner.integer(name) for name in names.values())
    return heads, width, kernel


def mamba_sizes(fields: Fields, hidden: int) -> tuple[int, int, int]:
    """Numbers of all heads of a token, heads, and groups of these that share what is put into and read from the
    state (Mamba-2)."""
    heads = fields.integer("mamba_n_heads", "mamba_num_heads")
    groups = fields.integer("mamba_n_groups", "n_groups")
    inner = fields.maybe("mamba_d_ssm")
    if inner is None:
        width = fields.maybe("mamba_head_dim")
        inner = fields.integer("mamba_expand") * hidden if width is None else heads * width
    return inner, heads, groups

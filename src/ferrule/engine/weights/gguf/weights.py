"""The weights of a GGUF model under the names of transformers' modules: which tensors make each, and how."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ferrule.engine.weights.formats.format import Weight
from ferrule.engine.weights.formats.gguf import READ, GgufLatent, format_of
from ferrule.engine.weights.formats.gguf_blocks import BLOCK_TYPES
from ferrule.engine.weights.gguf.names import DECAYS, FLAT, IGNORED, NAMELESS, TOP, Family, family_of, split_name
from ferrule.engine.weights.gguf.rows import IN_PLACE, Alternate, ByKeyHead, Joined, RowOrder, Turned
from ferrule.engine.weights.gguf.weight import Axes, GgufWeight
from ferrule.errors import ModelError
from ferrule.model.headers import Stored

_AXES: dict[int, Axes] = {0: (), 1: (1,), 2: (1, 2), 3: (0, 1, 2)}
_PAIR = ("gate", "up")


def weights_of(tensors: Mapping[str, Stored], config: Mapping[str, Any], file: str) -> dict[str, Weight]:
    """Every weight of a model by its key. ``config``: as `gguf_config` tells it. Tensors that are no part of the
    language model are left out.

    Raises `ModelError` for a family, a type or a shape that is not run here.
    """
    family = family_of(str(config["model_type"]), file)
    found: dict[str, Weight] = {}
    groups: defaultdict[str, dict[str, Stored]] = defaultdict(dict)
    fused: defaultdict[str, dict[str, Stored]] = defaultdict(dict)
    for name, tensor in tensors.items():
        if IGNORED.search(name):
            continue
        _check_type(tensor, file)
        layer, leaf, suffix = split_name(name)
        if layer and leaf.endswith("_exps"):
            groups[f"{layer}{suffix}"][leaf] = tensor
        elif layer and suffix == "weight" and leaf in family.fused:
            fused[f"{layer}{family.fused[leaf]}.weight"][leaf.removesuffix("_shexp")] = tensor
        elif layer and leaf in ("attn_k_b", "attn_v_b"):
            groups[f"{layer}latent"][leaf] = tensor
        else:
            key = f"{layer}{family.name(leaf)}" if layer else family.top.get(leaf) or TOP.get(leaf)
            if key is not None and (not layer or family.name(leaf)):
                _add(found, _single(key, leaf, suffix, tensor, family, config, file), file)
    for group, parts in groups.items():
        layer, _, kind = group.rpartition(".")
        made = [_latent(layer, parts, file)] if kind == "latent" else _experts(layer, kind, parts, family, file)
        for weight in made:
            _add(found, weight, file)
    for key, parts in fused.items():
        _add(found, _fused(key, parts, config, file), file)
    return found


def _add(found: dict[str, Weight], weight: Weight, file: str) -> None:
    if weight.key in found:
        raise ModelError(f"{file} has two tensors for {weight.key}; download it again")
    found[weight.key] = weight


def _check_type(tensor: Stored, file: str) -> None:
    if tensor.dtype not in READ:
        raise ModelError(
            f"{file}: {tensor.name} is of the type {tensor.dtype}, which is not run here; get the model in one of "
            f"{', '.join(sorted(READ))}"
        )
    if len(tensor.shape) > 3 or (tensor.dtype in BLOCK_TYPES and len(tensor.shape) < 2):
        raise ModelError(
            f"{file}: {tensor.name} is of {tensor.dtype} and has the shape {list(tensor.shape)}, as no weight has; "
            "download the model again"
        )


def _single(
    key: str, leaf: str, suffix: str, tensor: Stored, family: Family, config: Mapping[str, Any], file: str
) -> GgufWeight:
    """A weight that is one tensor."""
    if not any(key.endswith(each) for each in NAMELESS):
        key = f"{key}.{suffix}" if suffix else key
    if key.endswith("shared_expert_gate.weight") and len(tensor.shape) == 1:
        tensor = replace(tensor, shape=(1, *tensor.shape))
    if leaf in family.convolved and suffix == "weight":
        if len(tensor.shape) != 2:
            raise ModelError(
                f"{file}: {tensor.name} has the shape {list(tensor.shape)}, as no convolution of channels has"
            )
        channels, taps = tensor.shape
        return make(key, {"weight": tensor}, (channels, 1, taps), axes=(1, 0, 2))
    if leaf in FLAT:
        if tensor.dtype in BLOCK_TYPES:
            raise ModelError(f"{file}: {tensor.name} is of {tensor.dtype}, as no vector is; download the model again")
        tensor = replace(tensor, shape=(math.prod(tensor.shape),))
    rows: RowOrder = IN_PLACE
    if family.turned and leaf in ("attn_q", "attn_k"):
        rows = _turned(tensor, leaf, config, file)
    less = family.added if leaf.endswith("norm") and leaf not in FLAT and suffix == "weight" else 0.0
    return make(key, {"weight": tensor}, tensor.shape, rows=rows, less=less, decays=leaf == DECAYS)


def _fused(key: str, parts: Mapping[str, Stored], config: Mapping[str, Any], file: str) -> GgufWeight:
    """Of two tensors the one matrix that transformers has: gate and up, or a delta net's projection."""
    names = ("attn_qkv", "attn_gate") if "attn_qkv" in parts or "attn_gate" in parts else ("ffn_gate", "ffn_up")
    first, second = (parts.get(name) for name in names)
    if first is None or second is None or len(first.shape) != 2 or first.shape[1:] != second.shape[1:]:
        raise ModelError(f"{file}: {key} lacks {' or '.join(names)}, or these do not fit; download the model again")
    rows = first.shape[0]
    order: RowOrder = Joined(rows)
    if names[0] == "attn_qkv":
        heads, key_width, values, value_width = (
            int(config[f"linear_{each}"])
            for each in ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim")
        )
        order = ByKeyHead(heads, key_width, values // heads * value_width)
        fits = rows == 2 * heads * key_width + values * value_width and second.shape[0] == values * value_width
    else:
        fits = first.shape == second.shape
    if not fits:
        raise ModelError(f"{file}: {key} has {rows} and {second.shape[0]} rows, which is not what its heads have")
    return make(
        key, dict(zip(names, (first, second), strict=True)), (rows + second.shape[0], first.shape[1]), rows=order
    )


def _turned(tensor: Stored, leaf: str, config: Mapping[str, Any], file: str) -> Turned:
    heads = config.get("num_attention_heads" if leaf == "attn_q" else "num_key_value_heads")
    if heads is None:
        heads = config.get("num_attention_heads")
    size = tensor.shape[0] if tensor.shape else 0
    if not isinstance(heads, int) or heads < 1 or size % (2 * heads):
        raise ModelError(f"{file}: {tensor.name} has {size} rows, which do not divide by {heads} heads")
    return Turned(size // heads)


def _experts(layer: str, kind: str, parts: Mapping[str, Stored], family: Family, file: str) -> list[GgufWeight]:
    """The stacks of a layer's experts; ``kind``: their ``weight`` or ``bias``."""
    name = f"{layer}.{family.experts}.%s_proj" + ("_bias" if kind == "bias" else "")
    found = []
    for leaf, tensor in parts.items():
        if leaf in ("ffn_down_exps", "ffn_gate_up_exps"):
            both = leaf == "ffn_gate_up_exps"
            if both and family.transposed:
                raise ModelError(f"{file}: {tensor.name} is not known of this family; download the model again")
            found.append(_stack(name % ("gate_up" if both else "down"), {"weight": tensor}, IN_PLACE, family))
    if not family.gated and "ffn_up_exps" in parts:
        return [*found, _stack(name % "up", {"weight": parts["ffn_up_exps"]}, IN_PLACE, family)]
    pair = {each: parts[f"ffn_{each}_exps"] for each in _PAIR if f"ffn_{each}_exps" in parts}
    if not pair:
        return found
    shapes = {tensor.shape for tensor in pair.values()}
    if len(pair) != 2 or len(shapes) != 1:
        raise ModelError(f"{file}: the experts of {layer} lack gate or up, or these differ in shape")
    (shape,) = shapes
    if len(shape) != (3 if kind == "weight" else 2):
        raise ModelError(f"{file}: the experts of {layer} have the shape {list(shape)}, which is no stack of theirs")
    order = Alternate() if family.transposed else Joined(shape[1])
    return [*found, _stack(name % "gate_up", pair, order, family)]


def _stack(key: str, parts: Mapping[str, Stored], order: RowOrder, family: Family) -> GgufWeight:
    """Experts' matrices (experts, outputs, inputs), or their biases (experts, outputs)."""
    shape = next(iter(parts.values())).shape
    if len(shape) not in (2, 3):
        raise ModelError(f"{key} has the shape {list(shape)}, which is no stack of experts'; download the model again")
    count, rows = shape[0], shape[1] * len(parts)
    if len(shape) == 2:
        views = {role: replace(part, shape=(*shape, 1)) for role, part in parts.items()}
        return make(key, views, (count, rows), axes=(0, 1), rows=order)
    if family.transposed:
        return make(key, parts, (count, shape[2], rows), axes=(0, 2, 1), rows=order, transposed=True)
    return make(key, parts, (count, rows, shape[2]), rows=order)


def _latent(layer: str, parts: Mapping[str, Stored], file: str) -> Weight:
    keys, values = parts.get("attn_k_b"), parts.get("attn_v_b")
    shapes = [() if each is None else each.shape for each in (keys, values)]
    if (
        keys is None
        or values is None
        or [len(each) for each in shapes] != [3, 3]
        or ((shapes[0][0], shapes[0][1]) != (shapes[1][0], shapes[1][2]))
    ):
        raise ModelError(f"{file}: {layer} has attn_k_b and attn_v_b of shapes {shapes}, which do not fit each other")
    rows = shapes[0][0] * (shapes[0][2] + shapes[1][1])
    key = f"{layer}.self_attn.kv_b_proj.weight"
    return Weight(key, (rows, shapes[0][1]), GgufLatent(), {"keys": keys, "values": values})


def make(
    key: str,
    parts: Mapping[str, Stored],
    shape: tuple[int, ...],
    *,
    axes: Axes | None = None,
    rows: RowOrder = IN_PLACE,
    less: float = 0.0,
    decays: bool = False,
    transposed: bool = False,
) -> GgufWeight:
    """A weight of ``shape`` made of ``parts``. ``axes``: where its dimensions do not lie as they are stored.
    ``transposed``: as of `Weight`."""
    axes = _AXES[len(shape)] if axes is None else axes
    stored = [1, 1, 1]
    for dim, axis in enumerate(axes):
        stored[axis] = shape[dim]
    if math.prod(stored) != sum(math.prod(part.shape) for part in parts.values()):
        raise ModelError(f"{key} of shape {list(shape)} is not what its tensors hold")
    kinds = frozenset(part.dtype for part in parts.values())
    one, two, three = stored
    stored_as = (one, two, three)
    form = format_of(kinds)
    return GgufWeight(
        key, shape, form, parts, transposed, stored=stored_as, axes=axes, rows=rows, less=less, decays=decays
    )

"""The tensors of recurrent mixers, by arithmetic, named as transformers' modules are stored."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.model.families.mixers import delta_widths, kda_sizes, mamba_sizes
from ferrule.model.families.shape import Shape
from ferrule.model.mixer import MixerSpec
from ferrule.model.storage import Tensor


def mixer_tensors(shape: Shape, mixer: MixerSpec, layer: str) -> Iterator[Tensor]:
    """Tensors of the ``mixer`` of ``layer``, which is a name."""
    match mixer.kind:
        case "convolution":
            return _convolution(shape, mixer, f"{layer}.conv")
        case "delta":
            return _delta(shape, mixer, f"{layer}.linear_attn")
        case "kda":
            return _kda(shape, f"{layer}.self_attn")
        case "mamba2":
            return _mamba2(shape, mixer, f"{layer}.mamba")


def delta_projections(shape: Shape) -> dict[str, int]:
    """Outputs of a delta mixer's projections, in the order in which they are computed."""
    key, value = delta_widths(shape.fields)
    heads = shape.fields.integer("linear_num_value_heads")
    if shape.model_type == "qwen3_next":
        inputs = {"in_proj_qkvz": 2 * key + 2 * value, "in_proj_ba": 2 * heads}
    else:
        inputs = {"in_proj_qkv": 2 * key + value, "in_proj_z": value, "in_proj_b": heads, "in_proj_a": heads}
    return inputs | {"out_proj": shape.hidden_size}


def _convolution(shape: Shape, mixer: MixerSpec, name: str) -> Iterator[Tensor]:
    """LFM2 (Liquid AI 2025): two gates and what is convolved come out of one projection."""
    hidden, bias = shape.hidden_size, shape.has("conv_bias")
    yield from _linear(f"{name}.in_proj", 3 * hidden, hidden, bias)
    yield Tensor(f"{name}.conv.weight", (hidden, 1, mixer.kernel), "plain")
    if bias:
        yield Tensor(f"{name}.conv.bias", (hidden,), "plain")
    yield from _linear(f"{name}.out_proj", hidden, hidden, bias)


def _delta(shape: Shape, mixer: MixerSpec, name: str) -> Iterator[Tensor]:
    hidden, value = shape.hidden_size, delta_widths(shape.fields)[1]
    for each, width in delta_projections(shape).items():
        yield from _linear(f"{name}.{each}", width, value if each == "out_proj" else hidden)
    yield Tensor(f"{name}.conv1d.weight", (mixer.channels, 1, mixer.kernel), "plain")
    for each in ("A_log", "dt_bias"):
        yield Tensor(f"{name}.{each}", (shape.fields.integer("linear_num_value_heads"),), "plain")
    yield Tensor(f"{name}.norm.weight", (shape.fields.integer("linear_value_head_dim"),), "plain")


def _kda(shape: Shape, name: str) -> Iterator[Tensor]:
    """Kimi Linear (2025), section 4: the forget gate and the output's gate have a narrow middle."""
    hidden, (heads, width, kernel) = shape.hidden_size, kda_sizes(shape.fields)
    inner = heads * width
    for each in ("q", "k", "v"):
        yield from _linear(f"{name}.{each}_proj", inner, hidden)
        yield Tensor(f"{name}.{each}_conv1d.weight", (inner, 1, kernel), "plain")
    for gate in ("f", "g"):
        yield from _linear(f"{name}.{gate}_a_proj", width, hidden)
        yield from _linear(f"{name}.{gate}_b_proj", inner, width)
    yield from _linear(f"{name}.b_proj", heads, hidden)
    yield Tensor(f"{name}.A_log", (heads,), "plain")
    yield Tensor(f"{name}.dt_bias", (inner,), "plain")
    yield Tensor(f"{name}.o_norm.weight", (width,), "plain")
    yield from _linear(f"{name}.o_proj", hidden, inner)


def _mamba2(shape: Shape, mixer: MixerSpec, name: str) -> Iterator[Tensor]:
    hidden, (inner, heads, _) = shape.hidden_size, mamba_sizes(shape.fields, shape.hidden_size)
    own = shape.model_type == "nemotron_h"
    bias = shape.has("use_bias" if own else "mamba_proj_bias")
    yield from _linear(f"{name}.in_proj", inner + mixer.channels + heads, hidden, bias)
    yield Tensor(f"{name}.conv1d.weight", (mixer.channels, 1, mixer.kernel), "plain")
    if shape.has("+use_conv_bias" if own else "+mamba_conv_bias"):
        yield Tensor(f"{name}.conv1d.bias", (mixer.channels,), "plain")
    for each in ("A_log", "D", "dt_bias"):
        yield Tensor(f"{name}.{each}", (heads,), "plain")
    falcon = shape.model_type == "falcon_h1"
    if not falcon or shape.has("mamba_rms_norm"):
        yield Tensor(f"{name}.norm.weight", (inner,), "plain")
    yield from _linear(f"{name}.out_proj", hidden, inner, shape.has("projectors_bias") if falcon else bias)


def _linear(name: str, outputs: int, inputs: int, bias: bool = False) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (outputs, inputs))
    if bias:
        yield Tensor(f"{name}.bias", (outputs,), "plain")

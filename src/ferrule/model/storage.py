"""How many bytes tensors take in each format that weights are stored in."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ferrule.errors import ConfigError
from ferrule.model.fields import Fields

PLAIN = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "float8_e4m3fn": 1}
"""Bytes per number of torch's names for dtypes."""

Role = Literal["linear", "expert", "embedding", "head", "router", "plain"]
"""What a tensor is to a quantiser; ``plain``: norms, biases and whatever stays as it is."""


@dataclass(frozen=True)
class Tensor:
    """A tensor that a model must have: ``copies`` of ``shape``, the last dimension being a product's inner one."""

    name: str
    shape: tuple[int, ...]
    role: Role = "linear"
    copies: int = 1

    @property
    def parameters(self) -> int:
        return self.copies * math.prod(self.shape)


@dataclass(frozen=True)
class Format:
    """A way to store weights: ``plain`` bytes per number, and for the quantised ``roles`` ``bits`` per number and

    ``group_bytes`` per ``group`` numbers along the inner dimension (scales, and zero points or offsets); group 0 is a
    whole row. ``block``: square blocks instead, with ``group_bytes`` each. ``inner_bytes``: for each inner index.
    ``tensor_bytes``: for each tensor. ``exceptions``: modules' names with other (bits, group), or None: not quantised.
    """

    text: str
    plain: int = 2
    bits: float = 0.0
    group: int = 0
    group_bytes: float = 0.0
    block: tuple[int, int] | None = None
    inner_bytes: int = 0
    tensor_bytes: int = 0
    roles: frozenset[Role] = frozenset()
    exceptions: Mapping[str, tuple[float, int] | None] = field(default_factory=dict)

    def bits_of(self, name: str) -> float:
        """Bits per number of a quantised tensor ``name``."""
        for each, special in self.exceptions.items():
            if special is not None and f".{each}." in f".{name}":
                return special[0]
        return self.bits

    def bytes(self, tensor: Tensor) -> int:
        """What ``tensor`` takes, all copies."""
        bits, group = self.bits, self.group
        quantised = bits > 0 and tensor.role in self.roles
        for each, special in self.exceptions.items():
            if f".{each}." in f".{tensor.name}":
                quantised = special is not None
                bits, group = special or (bits, group)
                break
        if not quantised:
            return tensor.parameters * self.plain
        outer, inner = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        size = math.ceil(outer * inner * bits / 8)
        if self.block is not None:
            size += round(math.ceil(outer / self.block[0]) * math.ceil(inner / self.block[1]) * self.group_bytes)
        else:
            size += round(outer * (math.ceil(inner / group) if group else 1) * self.group_bytes)
        return tensor.copies * (size + inner * self.inner_bytes + self.tensor_bytes)


_LINEAR: frozenset[Role] = frozenset({"linear", "expert"})
_MATRICES: frozenset[Role] = frozenset({"linear", "expert", "embedding", "head", "router"})


def named_format(text: str) -> Format:
    """A format by the name that a user gives: ``bfloat16``, ``fp8``, ``int8``, ``int4``, ``mlx-8bit``, ``mlx-4bit``,
    ``mxfp4``, ``q8_0``, ``q4_k_m``. Raises `ConfigError` for another name."""
    found = _NAMED.get(_SHORT.get(text.lower(), text.lower()))
    if found is None:
        raise ConfigError(f"no weights are stored as {text!r}; use one of {', '.join(_NAMED)}")
    return found


_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "f16": "float16", "f32": "float32"}
_NAMED = {
    **{name: Format(name, plain=size) for name, size in PLAIN.items() if size in (2, 4)},
    "fp8": Format("fp8 in blocks of 128", bits=8, block=(128, 128), group_bytes=4, roles=_LINEAR),
    "int8": Format("int8 by row", bits=8, group_bytes=2, roles=_LINEAR),
    "int4": Format("4-bit in groups of 128", bits=4, group=128, group_bytes=2.5, inner_bytes=4, roles=_LINEAR),
    "mlx-8bit": Format("8-bit in groups of 64", bits=8, group=64, group_bytes=4, roles=_MATRICES),
    "mlx-6bit": Format("6-bit in groups of 64", bits=6, group=64, group_bytes=4, roles=_MATRICES),
    "mlx-4bit": Format("4-bit in groups of 64", bits=4, group=64, group_bytes=4, roles=_MATRICES),
    "mxfp4": Format("mxfp4 in groups of 32", bits=4, group=32, group_bytes=1, roles=frozenset({"expert"})),
    "q8_0": Format("q8_0", bits=8, group=32, group_bytes=2, roles=_MATRICES - {"router"}),
    "q4_k_m": Format("q4_k_m", bits=4.85, roles=_MATRICES - {"router"}),
}
"""``q4_k_m`` is a mixture whose mean is 4.85 bits a weight on Llama-like models (llama.cpp's own table)."""


def format_of(config: Fields) -> Format:
    """The format that ``config.json`` says the weights have. Raises `ConfigError` where it is one that is not known."""
    name = config.text("dtype") or config.text("torch_dtype", "bfloat16")
    plain = PLAIN.get(name.removeprefix("torch."))
    if plain is None:
        raise ConfigError(f"{config.file}: torch_dtype {name!r} is not one of {', '.join(PLAIN)}")
    plain = max(plain, 2)
    quantized = config.within("quantization_config")
    mlx = config.within("quantization")
    if mlx is not None and mlx.maybe("bits") is not None:
        return _mlx(mlx, plain)
    if quantized is None:
        return Format(name, plain=plain)
    method = quantized.text("quant_method")
    match method:
        case "fp8":
            return _fp8(quantized, plain)
        case "gptq" | "awq" | "auto-round" | "intel/auto-round":
            return _grouped(quantized, plain, indexed=method == "gptq")
        case "mxfp4":
            return Format("mxfp4 in groups of 32", plain, 4, 32, 1, roles=frozenset({"expert"}))
        case "compressed-tensors":
            return _compressed(quantized, plain)
        case "bitsandbytes":
            if quantized.flag("load_in_4bit", "_load_in_4bit", default=False):
                return Format("4-bit in groups of 64", plain, 4, 64, 1, roles=_LINEAR)
            return Format("int8 by row", plain, 8, 0, 4, roles=_LINEAR)
    if quantized.maybe("bits") is not None:  # mlx-lm writes its groups into both fields
        return _mlx(quantized, plain)
    raise ConfigError(f"{config.file}: quantization_config.quant_method {method!r} is not known here; give a format")


def _exceptions(fields: Fields, *names: str) -> dict[str, tuple[float, int] | None]:
    _, listed = fields.get(*names)
    if listed is None:
        return {}
    if not isinstance(listed, list):
        raise fields.error(names[0], "is no list")
    return {str(name): None for name in listed if not str(name).startswith("re:")}


def _bits(fields: Fields, name: str = "bits") -> int:
    bits = fields.integer(name)
    if bits > 16:
        raise fields.error(name, "is more than 16")
    return bits


def _fp8(fields: Fields, plain: int) -> Format:
    _, block = fields.get("weight_block_size")
    skipped = _exceptions(fields, "modules_to_not_convert", "ignored_layers")
    if block is None:
        return Format("fp8", plain, 8, tensor_bytes=4, roles=_LINEAR, exceptions=skipped)
    if not (isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
        raise fields.error("weight_block_size", "is not a pair of whole numbers")
    text = f"fp8 in blocks of {block[0]}"
    return Format(text, plain, 8, 0, 4, (block[0], block[1]), roles=_LINEAR, exceptions=skipped)


def _grouped(fields: Fields, plain: int, *, indexed: bool) -> Format:
    """GPTQ and AWQ: a 16-bit scale and a zero point of ``bits`` per group, GPTQ also a group number per input."""
    bits, group = _bits(fields), fields.integer("group_size", default=128, least=-1)
    group = max(group, 0)
    skipped = _exceptions(fields, "modules_to_not_convert")
    text = f"{bits}-bit in groups of {group}" if group else f"{bits}-bit by row"
    inner = 4 if indexed else 0
    return Format(text, plain, bits, group, 2 + bits / 8, None, inner, roles=_LINEAR, exceptions=skipped)


def _mlx(fields: Fields, plain: int) -> Format:
    """mlx-lm: a scale and an offset of 16 bits per group (mxfp4: one byte); embeddings and router quantised too."""
    bits, group = _bits(fields), fields.integer("group_size", default=64)
    special: dict[str, tuple[float, int] | None] = {}
    for name, value in fields.data.items():
        if value is False:
            special[name] = None
        elif isinstance(value, Mapping):
            inner = Fields(value, f"{fields.file}: {name}")
            special[name] = (_bits(inner), inner.integer("group_size", default=group))
    scale = 1 if "fp4" in fields.text("mode", "affine") else 4
    text = f"{bits}-bit in groups of {group}"
    return Format(text, plain, bits, group, scale, roles=_MATRICES, exceptions=special)


def _compressed(fields: Fields, plain: int) -> Format:
    groups = fields.within("config_groups")
    if groups is None or not groups.data:
        raise ConfigError(f"{fields.file} lacks config_groups")
    weights = Fields(next(iter(groups.data.values())), f"{fields.file}: config_groups").within("weights")
    if weights is None:
        raise ConfigError(f"{fields.file}: config_groups lacks weights")
    bits, group = _bits(weights, "num_bits"), max(0, weights.integer("group_size", default=0, least=-1))
    scale = 1.0 if bits == 4 and group == 16 else 2.0  # nvfp4 has 8-bit scales
    skipped = _exceptions(fields, "ignore")
    text = f"{bits}-bit in groups of {group}" if group else f"{bits}-bit by row"
    return Format(text, plain, bits, group, scale, roles=_LINEAR, exceptions=skipped)


_SCALE = re.compile(
    r"\.(scales|biases|qzeros|g_idx|perm|weight_scale(_inv|_2)?|weight_(shape|zero_point)|input_scale|SCB)$"
    r"|_scales$|\.(absmax|quant_map|quant_state)\b|\.nested_"
)


def is_scale(name: str) -> bool:
    """Whether tensor ``name`` holds scales, zero points or their kin, and no parameters of the model."""
    return _SCALE.search(name) is not None

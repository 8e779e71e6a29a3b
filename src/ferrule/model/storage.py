"""Bytes of tensors in each format that weights are stored in."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ferrule.errors import ConfigError
from ferrule.model.holding import WHOLE_NUMBER, Tensors
from ferrule.model.on_load import BITS, GROUP
from ferrule.model.packing import Packing

PLAIN = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "float8_e4m3fn": 1}
"""Bytes per number of torch's names for dtypes."""

Role = Literal["linear", "expert", "stack", "embedding", "head", "router", "plain", "numbers"]
"""Role of a tensor for a quantiser; ``stack``: experts that are stored in one tensor; ``plain``: norms, biases and
whatever stays as it is; ``numbers``: whole numbers of 8 bytes."""


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
    whole row. ``block``: square blocks instead, with ``group_bytes`` each. ``flat``: as many numbers of the flattened
    tensor instead. ``inner_bytes``: for each inner index. ``tensor_bytes``: for each tensor, and with ``told_shape``
    its shape in decimals. ``whole_groups``: rows that are none stay plain. ``exceptions``: other formats of modules by
    name, or by ``re:`` and a regular expression; None: not quantised. ``packing``: how the engine holds what is
    quantised; ``"numbers"``: as plain numbers; None: that is not known.
    """

    text: str
    plain: int = 2
    bits: float = 0.0
    group: int = 0
    group_bytes: float = 0.0
    block: tuple[int, int] | None = None
    flat: int = 0
    inner_bytes: int = 0
    tensor_bytes: int = 0
    told_shape: bool = False
    whole_groups: bool = False
    roles: frozenset[Role] = frozenset()
    exceptions: Mapping[str, Format | None] = field(default_factory=dict)
    packing: Packing | Literal["numbers"] | None = None

    def of(self, name: str) -> Format | None:
        """Format of a quantised tensor ``name``; None where it is an exception that is not quantised."""
        for each, special in self.exceptions.items():
            if _means(each, name):
                return special
        return self

    def bits_of(self, name: str) -> float:
        """Bits per number of a quantised tensor ``name``."""
        return (self.of(name) or self).bits

    def bytes(self, tensor: Tensor) -> int:
        """Bytes of ``tensor``, all copies."""
        if tensor.role == "numbers":
            return tensor.parameters * WHOLE_NUMBER
        own = self._of_tensor(tensor)
        return tensor.parameters * self.plain if own is None else tensor.copies * own._one(tensor.shape)

    def held(self, tensor: Tensor) -> Tensors | None:
        """``tensor`` as the engine holds it; None where that is not known."""
        own = self._of_tensor(tensor)
        if own is None or own.packing == "numbers":
            return Tensors(tensor.shape, copies=tensor.copies)
        return None if own.packing is None else Tensors(tensor.shape, own.packing, tensor.copies)

    def _of_tensor(self, tensor: Tensor) -> Format | None:
        """Format in which ``tensor`` is quantised; None: it is not."""
        own = self.of(tensor.name) if self.bits > 0 and tensor.role in self.roles else None
        return None if own is not None and own.whole_groups and tensor.shape[-1] % own.group else own

    def _one(self, shape: tuple[int, ...]) -> int:
        outer, inner = math.prod(shape[:-1]), shape[-1]
        size = math.ceil(outer * inner * self.bits / 8)
        if self.block is not None:
            groups = math.ceil(outer / self.block[0]) * math.ceil(inner / self.block[1])
        elif self.flat:
            groups = math.ceil(outer * inner / self.flat)
            size += math.ceil(groups / NESTED) * 4 if self.group_bytes == 1 else 0
        else:
            groups = outer * (math.ceil(inner / self.group) if self.group else 1)
        told = len(json.dumps(list(shape))) if self.told_shape else 0
        return size + round(groups * self.group_bytes) + inner * self.inner_bytes + self.tensor_bytes + told


NESTED = 256
"""bitsandbytes' scales of one byte that share a scale of 4 bytes."""


def _means(exception: str, name: str) -> bool:
    if exception.startswith("re:"):
        return re.match(exception.removeprefix("re:"), name.removesuffix(".weight")) is not None
    return f".{exception}." in f".{name}"


EXPERTS: frozenset[Role] = frozenset({"expert", "stack"})
LINEAR: frozenset[Role] = EXPERTS | {"linear"}
MATRICES: frozenset[Role] = LINEAR | {"embedding", "head", "router"}


def named_format(text: str) -> Format:
    """A format by the name that a user gives: ``bfloat16``, ``fp8``, ``int8`` and ``int4`` (as the engine quantises
    while it loads), ``gptq-int4``, ``mlx-8bit``, ``mlx-4bit``, ``mxfp4``, ``q8_0``, ``q4_k_m``. Raises `ConfigError`
    for another name."""
    found = _NAMED.get(_SHORT.get(text.lower(), text.lower()))
    if found is None:
        raise ConfigError(f"no weights are stored as {text!r}; use one of {', '.join(_NAMED)}")
    return found


_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "f16": "float16", "f32": "float32"}
_ON_LOAD = {
    name: Format(
        f"{name} in groups of {GROUP}",
        bits=bits,
        group=GROUP,
        group_bytes=2,
        whole_groups=True,
        roles=MATRICES - {"router", "stack"},
        packing=Packing(bits, GROUP, 2),
    )
    for name, bits in BITS.items()
}
_MIXTURES = {"q6_k": 6.56, "q4_k_m": 4.85, "q3_k_m": 3.91}
"""Mean bits a weight of GGUF's mixtures on Llama-like models (llama.cpp's own table)."""
_NAMED = {
    **{name: Format(name, plain=size) for name, size in PLAIN.items() if size in (2, 4)},
    "fp8": Format(
        "fp8 in blocks of 128", bits=8, block=(128, 128), group_bytes=4, roles=LINEAR, packing=Packing(8, 128, 4)
    ),
    "int8": _ON_LOAD["int8"],
    "int4": replace(_ON_LOAD["int4"], exceptions=dict.fromkeys(("embed_tokens", "lm_head"), _ON_LOAD["int8"])),
    "gptq-int4": Format(
        "4-bit in groups of 128",
        bits=4,
        group=128,
        group_bytes=2.5,
        inner_bytes=4,
        roles=LINEAR,
        packing=Packing(4, 128, 2),
    ),
    **{
        f"mlx-{bits}bit": Format(
            f"{bits}-bit in groups of 64",
            bits=bits,
            group=64,
            group_bytes=4,
            roles=MATRICES,
            packing=Packing(bits, 64, 2, 2),
        )
        for bits in (8, 6, 4)
    },
    "mxfp4": Format("mxfp4 in groups of 32", bits=4, group=32, group_bytes=1, roles=EXPERTS, packing=Packing(4, 32, 1)),
    "q8_0": Format("q8_0", bits=8, group=32, group_bytes=2, roles=MATRICES - {"router"}, packing=Packing(8, 32, 2)),
    "mxfp4_moe": Format(
        "mxfp4 experts, the rest q8_0",
        bits=8,
        group=32,
        group_bytes=2,
        roles=MATRICES - {"router"},
        exceptions={r"re:.*\.experts\b": Format("mxfp4", bits=4, group=32, group_bytes=1, roles=EXPERTS)},
    ),
    "q4_0": Format("q4_0", bits=4, group=32, group_bytes=2, roles=MATRICES - {"router"}),
    **{name: Format(name, bits=bits, roles=MATRICES - {"router"}) for name, bits in _MIXTURES.items()},
}


_SCALE = re.compile(
    r"\.(scales|biases|qzeros|g_idx|perm|SCB|weight_format|activation_scale|input_(scale|zero_point|global_scale)"
    r"|weight_(scale(_inv|_2)?|shape|zero_point|global_scale|g_idx))$"
    r"|(?<!_hc)\.scale$|_scales$|\.(absmax|quant_map|quant_state)\b|\.nested_"
)


def is_scale(name: str) -> bool:
    """Whether tensor ``name`` holds scales, zero points or their kin, and no parameters of the model."""
    return _SCALE.search(name) is not None

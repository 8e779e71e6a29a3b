"""The format that config.json says the weights have, in the words of each quantiser."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from ferrule.errors import ConfigError
from ferrule.model.families.fields import Fields
from ferrule.model.packing import Packing
from ferrule.model.storage import EXPERTS, LINEAR, MATRICES, PLAIN, Format

SMALL_FLOATS = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
"""Bits and group of MLX's modes whose groups have a scale of a byte."""


def format_of(config: Fields) -> Format:
    """The format that ``config.json`` says the weights have. Raises `ConfigError` where it is one that is not known."""
    name = config.text("dtype") or config.text("torch_dtype", "bfloat16")
    name = name.removeprefix("torch.")
    plain = PLAIN.get(name)
    if plain is None:
        raise ConfigError(f"{config.file}: torch_dtype {name!r} is not one of {', '.join(PLAIN)}")
    plain = max(plain, 2)
    quantized = config.within("quantization_config")
    mlx = config.within("quantization")
    if mlx is not None and (mlx.maybe("bits") is not None or mlx.text("mode")):
        return _mlx(mlx, plain)
    if quantized is None:
        return Format(name, plain=plain)
    method = quantized.text("quant_method")
    match method:
        case "fp8":
            told = quantized.text("expert_dtype") or config.text("expert_dtype")
            return _fp8(quantized, plain, small_experts=told == "fp4")
        case "gptq" | "awq" | "auto-round" | "intel/auto-round":
            return _grouped(quantized, plain, indexed=method == "gptq")
        case "mxfp4":
            return _mxfp4(plain)
        case "compressed-tensors":
            return _compressed(quantized, plain)
        case "bitsandbytes":
            return _bitsandbytes(quantized, plain, name)
    if quantized.maybe("bits") is not None:  # mlx-lm writes its groups into both fields
        return _mlx(quantized, plain)
    raise ConfigError(f"{config.file}: quantization_config.quant_method {method!r} is not known here; give a format")


def _exceptions(fields: Fields, *names: str) -> dict[str, Format | None]:
    """Modules that are not quantised."""
    _, listed = fields.get(*names)
    if listed is None:
        return {}
    if not isinstance(listed, list):
        raise fields.error(names[0], "is no list")
    for each in listed:
        _check_pattern(fields, names[0], str(each))
    return {str(name): None for name in listed}


def _check_pattern(fields: Fields, name: str, text: str) -> None:
    try:
        re.compile(text.removeprefix("re:") if text.startswith("re:") else "")
    except re.error as error:
        raise fields.error(name, f"has a regular expression that is none ({error})") from None


def _bits(fields: Fields, name: str = "bits") -> int:
    bits = fields.integer(name)
    if bits > 16:
        raise fields.error(name, "is more than 16")
    return bits


def _mxfp4(plain: int) -> Format:
    return Format("mxfp4 in groups of 32", plain, 4, 32, 1, roles=EXPERTS, packing=Packing(4, 32, 1))


def _fp8(fields: Fields, plain: int, *, small_experts: bool) -> Format:
    """``small_experts``: these are in FP4 (DeepSeek-V4)."""
    _, block = fields.get("weight_block_size")
    skipped = _exceptions(fields, "modules_to_not_convert", "ignored_layers")
    if small_experts:
        skipped["experts"] = _mxfp4(plain)
    static = 4 if fields.text("activation_scheme") == "static" else 0
    if block is None:
        return Format(
            "fp8", plain, 8, tensor_bytes=4 + static, roles=LINEAR, exceptions=skipped, packing=Packing(8, 0, 4)
        )
    if not (isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
        raise fields.error("weight_block_size", "is not a pair of whole numbers")
    text, size = f"fp8 in blocks of {block[0]}", (block[0], block[1])
    text += ", experts in mxfp4" if small_experts else ""
    return Format(
        text,
        plain,
        8,
        0,
        4,
        size,
        tensor_bytes=static,
        roles=LINEAR,
        exceptions=skipped,
        packing=Packing(8, block[1], 4),
    )


def _grouped(fields: Fields, plain: int, *, indexed: bool) -> Format:
    """GPTQ and AWQ: a 16-bit scale and a zero point of ``bits`` per group, GPTQ also a group number per input."""
    bits, group = _bits(fields), max(fields.integer("group_size", default=128, least=-1), 0)
    zeros = not (indexed and fields.get("sym")[1] is True)
    packing = Packing(bits, group, 2, int(zeros), ordered=fields.get("desc_act")[1] is True)
    general = _one_group(plain, packing, indexed)
    special = _exceptions(fields, "modules_to_not_convert")
    dynamic = fields.within("dynamic")  # GPTQModel: other bits by regular expressions, none where one begins with -:
    for name, value in (dynamic.data if dynamic is not None else {}).items():
        pattern = f"re:{name.removeprefix('+:').removeprefix('-:')}"
        _check_pattern(fields, "dynamic", pattern)
        if name.startswith("-:") or value is False:
            special[pattern] = None
        elif isinstance(value, Mapping):
            own = Fields(value, f"{fields.file}: dynamic", fields.data)
            size = max(own.integer("group_size", least=-1), 0)
            special[pattern] = _one_group(plain, replace(packing, bits=_bits(own), group=size), indexed)
    return replace(general, exceptions=special)


def _one_group(plain: int, packing: Packing, indexed: bool) -> Format:
    bits, group = packing.bits, packing.group
    text = f"{bits}-bit in groups of {group}" if group else f"{bits}-bit by row"
    index = 4 if indexed else 0
    return Format(text, plain, bits, group, 2 + bits / 8, inner_bytes=index, roles=LINEAR, packing=packing)


def _mlx(fields: Fields, plain: int) -> Format:
    """mlx-lm: a scale and an offset of the model's dtype per group, or a scale of one byte; embeddings and router are
    quantised too."""
    special: dict[str, Format | None] = {}
    for name, value in fields.data.items():
        if value is False:
            special[name] = None
        elif isinstance(value, Mapping):
            special[name] = _mlx_mode(Fields(value, f"{fields.file}: {name}", fields.data), plain)
    return replace(_mlx_mode(fields, plain), exceptions=special)


def _mlx_mode(fields: Fields, plain: int) -> Format:
    _, mode = fields.get("mode")
    if isinstance(mode, str) and mode in SMALL_FLOATS:
        bits, group = SMALL_FLOATS[mode]
        scale = 2 if mode == "nvfp4" else 1
        text, packing = f"{mode} in groups of {group}", Packing(bits, group, scale)
        return Format(text, plain, bits, group, 1, roles=MATRICES, packing=packing)
    bits, group = _bits(fields), fields.integer("group_size", default=64)
    text, packing = f"{bits}-bit in groups of {group}", Packing(bits, group, plain, plain)
    return Format(text, plain, bits, group, 2 * plain, roles=MATRICES, packing=packing)


def _compressed(fields: Fields, plain: int) -> Format:
    """compressed-tensors: a format for the modules that a group names, and one for all linear ones."""
    groups = fields.within("config_groups")
    if groups is None or not groups.data:
        raise ConfigError(f"{fields.file} lacks config_groups")
    special, general = _exceptions(fields, "ignore"), None
    for data in groups.data.values():
        group = Fields(data, f"{fields.file}: config_groups")
        made = _compressed_group(group, fields.text("format"), plain)
        _, targets = group.get("targets")
        named = [str(each) for each in targets or ()] if isinstance(targets, list) else []
        for each in named:
            _check_pattern(group, "targets", each)
            if each.startswith("re:") or "." in each:
                special[each] = made
        general = general or made
    assert general is not None
    return replace(general, exceptions=special)


def _compressed_group(group: Fields, form: str, plain: int) -> Format:
    weights = group.within("weights")
    if weights is None:
        raise ConfigError(f"{group.file} lacks weights")
    form = group.text("format") or form
    bits, size = _bits(weights, "num_bits"), max(0, weights.integer("group_size", default=0, least=-1))
    zeros = not weights.flag("symmetric", default=True)
    inputs = group.within("input_activations")
    static = inputs is not None and inputs.get("dynamic")[1] is False
    text = f"{bits}-bit in groups of {size}" if size else f"{bits}-bit by row"
    if weights.text("type") == "float" and bits == 4:
        whole = 0 if size == 32 else 4  # nvfp4: a scale of the whole tensor, and one of its inputs
        activations = 4 if whole and inputs is not None and inputs.get("dynamic")[1] is not True else 0
        text, packing = f"fp4 in groups of {size}", Packing(4, size, 4 if whole else 1)
        return Format(text, plain, 4, size, 1, tensor_bytes=whole + activations, roles=LINEAR, packing=packing)
    packing = Packing(bits, size, plain, int(zeros))
    if form == "pack-quantized":
        _, order = weights.get("actorder")
        index = 4 if order in ("group", True) else 0
        each = plain + (bits / 8 if zeros else 0)
        return Format(
            text,
            plain,
            bits,
            size,
            each,
            inner_bytes=index,
            tensor_bytes=16,
            roles=LINEAR,
            packing=replace(packing, ordered=index > 0),
        )
    packing = replace(packing, bits=8)
    each, extra = plain + (1 if zeros else 0), (plain + (1 if zeros else 0)) if static else 0
    _, block = weights.get("block_structure")
    strategy = weights.text("strategy")
    if weights.text("type") == "float":
        text = "fp8"
    if strategy == "block" and isinstance(block, list) and [type(n) for n in block] == [int, int] and min(block) > 0:
        text = f"{text} in blocks of {block[0]}"
        return Format(
            text,
            plain,
            8,
            0,
            each,
            (block[0], block[1]),
            tensor_bytes=extra,
            roles=LINEAR,
            packing=replace(packing, group=block[1]),
        )
    if strategy == "tensor":
        return Format(text, plain, 8, tensor_bytes=each + extra, roles=LINEAR, packing=replace(packing, group=0))
    return Format(text, plain, 8, size, each, tensor_bytes=extra, roles=LINEAR, packing=packing)


def _bitsandbytes(fields: Fields, plain: int, dtype: str) -> Format:
    """8 bits: a scale for each row, and a byte that names the order of the codes. 4 bits: a scale for each block of the
    flattened tensor, a table of 16 numbers, and a state in JSON; with nested scales these are bytes, with a table of
    256 numbers more. The digits of the mean that is then taken from the scales are not known: most often 20."""
    skipped = _exceptions(fields, "llm_int8_skip_modules")
    if not fields.flag("load_in_4bit", "_load_in_4bit", default=False):
        return Format(
            "int8 by row", plain, 8, 0, 4, tensor_bytes=1, roles=LINEAR, exceptions=skipped, packing=Packing(8, 0, 4)
        )
    kind = fields.text("bnb_4bit_quant_type", "fp4")
    state: dict[str, object] = {"quant_type": kind, "blocksize": 64, "dtype": dtype, "shape": []}
    if nested := fields.flag("bnb_4bit_use_double_quant", default=False):
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.123456789012345678}
    return Format(
        "4-bit in blocks of 64",
        plain,
        4,
        group_bytes=1 if nested else 4,
        flat=64,
        tensor_bytes=64 + (1024 if nested else 0) + len(json.dumps(state)) - len("[]"),
        told_shape=True,
        roles=LINEAR,
        exceptions=skipped,
        packing=Packing(4, 64, 4) if kind == "nf4" else "numbers",
    )

"""Multi-token prediction (MTP): a layer behind the last one, with which a model guesses the token after the next.

Its checkpoints store that layer under the next number (``model.layers.61`` of DeepSeek-V3's 61), with what makes its
input of a token and of the hidden state before it (``enorm``, ``hnorm``, ``eh_proj``) and its last norm
(``shared_head.norm``); embedding and output matrix are the model's own (DeepSeek-V3 Technical Report, 2024, section
2.2; README_WEIGHTS.md beside its weights). Here it is a model of one layer, which is described, cut and counted as any
other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ferrule.errors import ModelError
from ferrule.model.count import Counts, count, expected
from ferrule.model.families.shape import read_shape
from ferrule.model.gguf import SUFFIX, gguf_file
from ferrule.model.headers import INDEX, SINGLE, parse_index, read_headers, read_json
from ferrule.model.hub import Hub
from ferrule.model.quantization import format_of
from ferrule.model.read import read_configuration
from ferrule.model.spec import ModelSpec
from ferrule.model.storage import Tensor, named_format

MTP = "mtp"
"""What users call it."""
MTP_FAMILIES = ("deepseek_v3", "glm4_moe", "glm4_moe_lite")
"""Values of ``model_type`` whose layers for it are run."""
ONE_LAYER: Mapping[str, Any] = {
    "num_hidden_layers": 1,
    "first_k_dense_replace": 0,
    "layer_types": ["full_attention"],
    "mlp_layer_types": ["sparse"],
}
"""Fields of a configuration that have to be these: the layer always has experts."""
_LISTS = ("layer_types", "mlp_layer_types")
"""Those of them that some configurations lack."""
_CURE = "use --speculate ngram, or draft=MODEL with a small model of the same tokens"
_INPUT = re.compile(r"(?P<stack>(?:.*\.)?layers\.)(?P<number>\d+)\.eh_proj\.weight")
Stored = TypeVar("Stored")


def mtp_refusal(model_type: str) -> str | None:
    """Reason why models of this kind do not guess by themselves here, or None."""
    if model_type in MTP_FAMILIES:
        return None
    return (
        f"no layer for multi-token prediction (MTP) is run of {model_type or 'this model'}, only those of "
        f"{', '.join(MTP_FAMILIES)}; {_CURE}"
    )


def mtp_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """``config.json`` of the model of one layer, from that of the model."""
    lacking = [name for name in _LISTS if fields.get(name) is None]
    return {**fields, **{name: value for name, value in ONE_LAYER.items() if name not in lacking}}


def mtp_names(names: Iterable[str], where: str) -> dict[str, str]:
    """Names of stored weights -> those that they have in the model of one layer; of several such layers it is the
    first. Raises `ModelError` where there is none; ``where`` is named in it."""
    names = list(names)
    found = [match for name in names if (match := _INPUT.fullmatch(name))]
    if not found:
        raise ModelError(
            f"{where} holds no layer for multi-token prediction (MTP): no tensor is called "
            f"model.layers.N.eh_proj.weight. Converted files often lack it: download the model as its makers published "
            f"it, or {_CURE}"
        )
    first = min(found, key=lambda match: int(match["number"]))
    stack, own = first["stack"], f"{first['stack']}{first['number']}."
    last_norm = f"{stack.removesuffix('layers.')}norm."
    made: dict[str, str] = {}
    for name in names:
        within = name.removeprefix(own)
        if within == name:
            if not name.startswith((stack, last_norm)):
                made[name] = name
        elif within.startswith("shared_head.norm."):
            made[name] = last_norm + within.removeprefix("shared_head.norm.")
        elif not within.startswith(("shared_head.", "embed_tokens.")):
            made[name] = f"{stack}0.{within}"
    return made


def mtp_tensors(tensors: Mapping[str, Stored], where: str) -> dict[str, Stored]:
    """``tensors`` of the model of one layer, by their names in that. Raises as `mtp_names`."""
    return {name: tensors[stored] for stored, name in mtp_names(tensors, where).items()}


def read_mtp(model: str, *, weights: str | None = None, hub: Hub | None = None) -> ModelSpec:
    """Model spec of the layer for multi-token prediction of ``model``, by arithmetic; ``weights`` and errors as of
    `read_model`. Raises `ModelError` where it has none that is run here."""
    found = read_configuration(model, hub=hub)
    name, config = model, found
    if isinstance(found, Path):
        if gguf_file(found) is not None or found.suffix == SUFFIX:
            raise ModelError(f"{model}: {of_gguf()}")
        name, config = found.resolve().name, read_json(found / "config.json")
    told: Any = config
    refusal = mtp_refusal(_model_type(told))
    if refusal is not None:
        raise ModelError(f"{model}: {refusal}")
    if not told.get("num_nextn_predict_layers"):
        raise ModelError(
            f"{model}: its config.json names no layer for multi-token prediction (num_nextn_predict_layers); {_CURE}"
        )
    stored = _stored(found) if isinstance(found, Path) else []
    if stored:
        mtp_names(stored, model)
    shape = read_shape(mtp_fields(told), f"{model}: config.json")
    storage = named_format(weights) if weights else format_of(shape.fields)
    hidden = shape.hidden_size
    added = (
        Tensor("model.layers.0.enorm.weight", (hidden,), "plain"),
        Tensor("model.layers.0.hnorm.weight", (hidden,), "plain"),
        Tensor("model.layers.0.eh_proj.weight", (hidden, 2 * hidden), "plain"),
    )
    own = [Counts(each.name, each.parameters, storage.bytes(each), storage.held(each)) for each in added]
    return count(mtp_title(name), shape, [*expected(shape, storage), *own], "config", storage)


def mtp_title(model: str) -> str:
    """What the layer of ``model`` is called."""
    return f"{model}'s MTP layer"


def of_gguf() -> str:
    """Why there is none of a GGUF file."""
    return f"the layer for multi-token prediction (MTP) of a GGUF file is not run here; {_CURE}"


def _stored(directory: Path) -> list[str]:
    """Names of the tensors in ``directory``; none where it has no weights."""
    index, single = directory / INDEX, directory / SINGLE
    if index.exists():
        return list(parse_index(read_json(index), str(index)).files)
    return [tensor.name for tensor in read_headers(single)] if single.exists() else []


def _model_type(config: Any) -> str:
    return str(config.get("model_type", "")) if isinstance(config, dict) else ""

"""Find out what a model is: from a directory, a GGUF file, a hub id, or the configurations that ship with Ferrule."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from ferrule.errors import ModelError
from ferrule.model.count import CLOSE, Counts, count, expected, held_as, scaled
from ferrule.model.embedded import demo_path
from ferrule.model.families.family import Cuts
from ferrule.model.families.shape import Shape, read_shape
from ferrule.model.gguf import LAYOUTS, SIZES, gguf_config, gguf_file, gguf_text, read_gguf_model
from ferrule.model.headers import (
    INDEX,
    SINGLE,
    Index,
    Stored,
    counts,
    index_of,
    parse_header,
    parse_index,
    parse_json,
    read_headers,
    read_json,
)
from ferrule.model.holding import Tensors
from ferrule.model.hub import CONFIG_BYTES, HUB_ID, Hub
from ferrule.model.names import layer_of, place_of
from ferrule.model.packing import packing_of
from ferrule.model.quantization import format_of
from ferrule.model.spec import ModelSpec
from ferrule.model.storage import PLAIN, Format, named_format

_HALVES = {f"ffn_gate{each}": (f"ffn_up{each}", f"ffn_up{each}") for each in ("", "_shexp")}
_QKVZ = {"attn_qkv": ("attn_gate", "ssm_in")}
"""Pairs of a GGUF file's tensors that families have in one matrix: first -> second, and the name of both."""


def read_model(model: str, *, weights: str | None = None, hub: Hub | None = None) -> ModelSpec:
    """Model spec of ``model``: a directory (weights are not needed beside ``config.json``), a
    ``config.json``, a GGUF file, ``demo``, the name of a known model (`known_models`), or a hub id.

    ``weights`` counts it as if it were stored so (see `named_format`) instead of how it is. Raises `ModelError` where
    files are missing or damaged, `ConfigError` naming a field that cannot be, `PlanError` where nothing adds up.
    """
    path = demo_path() if model == "demo" else Path(model).expanduser()
    if path.is_dir():
        return _directory(path, weights)
    if path.is_file():
        return (
            _gguf(path, weights)
            if path.suffix == ".gguf"
            else _configured(path.stem, read_json(path), str(path), weights)
        )
    known = known_models().get(model.lower())
    if known is not None:
        return _known(known, weights)
    if HUB_ID.fullmatch(model):
        return _from_hub(model, weights, hub or Hub.from_environment())
    raise ModelError(
        f"{model}: no such file or directory, nor a hub id (owner/name), nor one of the models known here: "
        + ", ".join(known_models())
    )


def read_configuration(model: str, *, hub: Hub | None = None) -> Path | dict[str, Any]:
    """The directory or GGUF file of ``model``, found as `read_model` finds it; of a model whose files are not here, and
    of a ``config.json`` given by itself, the parsed configuration. Raises `ModelError` where there is none."""
    path = demo_path() if model == "demo" else Path(model).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    told: dict[str, Any]
    if path.is_file():
        told = read_json(path)
        return told
    known = known_models().get(model.lower())
    if known is not None:
        told = json.loads(known.read_text())["config"]
        return told
    reader = hub or Hub.from_environment()
    downloaded = reader.downloaded(model)
    if downloaded is not None:
        return downloaded
    told = _hub_config(model, reader)
    return told


def known_models() -> dict[str, Path]:
    """Short names of published models whose configurations ship with Ferrule (facts only, with their sources)."""
    directory = Path(str(resources.files("ferrule.model") / "known"))
    return {file.stem: file for file in sorted(directory.glob("*.json"))}


def spec_of_tensors(
    name: str, config: Any, file: str, tensors: Iterable[Counts], cuts: Cuts | None = None
) -> ModelSpec:
    """A `ModelSpec` from a parsed ``config.json`` (``file`` names it in errors) and all weights.

    ``cuts``: what the engine's own plan shares out, where that is known better than from the family.
    """
    shape = read_shape(config, file, cuts)
    return count(name, shape, tensors, "headers", format_of(shape.fields))


def spec_of_config(name: str, config: Any, *, weights: str | None = None) -> ModelSpec:
    """A `ModelSpec` by arithmetic from a parsed ``config.json``; ``weights`` and errors as of `read_model`."""
    return _configured(name, config, name, weights)


def _of_headers(name: str, config: Any, file: str, tensors: Iterable[Stored]) -> ModelSpec:
    """The same from headers. Of packed weights these do not tell all that says how they are held: arithmetic does."""
    shape = read_shape(config, file)
    storage = format_of(shape.fields)
    spec = count(name, shape, [counts(each, storage) for each in tensors], "headers", storage)
    return held_as(spec, count(name, shape, expected(shape, storage), "headers", storage)) if storage.bits else spec


def _configured(name: str, config: Any, file: str, weights: str | None) -> ModelSpec:
    shape = read_shape(config, file)
    if not shape.known:
        raise ModelError(
            f"{file}: {shape.named} is not a family known here, so its sizes cannot be told from its configuration "
            f"alone; give the directory that holds its weights, or their {INDEX}, and they are counted from that"
        )
    storage = named_format(weights) if weights else format_of(shape.fields)
    return count(name, shape, expected(shape, storage), "config", storage)


def _directory(directory: Path, weights: str | None) -> ModelSpec:
    name, file = directory.resolve().name, directory / "config.json"
    if not file.exists():
        gguf = gguf_file(directory)
        if gguf is not None:
            return _gguf(gguf, weights)
        raise ModelError(f"{directory} holds no config.json and no GGUF file; is it a model directory?")
    config = read_json(file)
    index, single = directory / INDEX, directory / SINGLE
    if index.exists():
        table = parse_index(read_json(index), str(index))
        files = sorted(set(table.files.values()))
        if weights or not all((directory / each).exists() for each in files):
            return _indexed(name, config, str(file), table, weights)
        stored = [tensor for each in files for tensor in read_headers(directory / each)]
        return _of_headers(name, config, str(file), stored)
    if single.exists():
        stored = read_headers(single)
        if weights:
            return _indexed(name, config, str(file), index_of(stored), weights)
        return _of_headers(name, config, str(file), stored)
    return _configured(name, config, str(file), weights)


def _gguf(file: Path, weights: str | None) -> ModelSpec:
    model = read_gguf_model(file)
    config = gguf_config(model)
    if weights:
        return _configured(model.name, config, str(file), weights)
    shape = read_shape(config, str(file))
    return count(
        model.name,
        shape,
        _gguf_counts(model.tensors, shape),
        "headers",
        Format(gguf_text(model), plain=PLAIN[config["dtype"]]),
    )


def _gguf_counts(tensors: Iterable[Stored], shape: Shape) -> list[Counts]:
    """Tensors as the engine holds them: pairs that it has in one matrix are one, by the name of that."""
    family = shape.family
    pairs = _HALVES if family.mlp == "packed" else _QKVZ if shape.model_type == "qwen3_next" else {}
    found = {each.name: Counts(each.name, math.prod(each.shape), each.bytes, _gguf_held(each)) for each in tensors}
    for name in list(found):
        stem, _, leaf = name.removesuffix(".weight").rpartition(".")
        if leaf not in pairs:
            continue
        other, whole = pairs[leaf]
        second = found.get(f"{stem}.{other}.weight")
        if second is None:
            continue
        first = found.pop(name)
        del found[second.name]
        found[f"{stem}.{whole}.weight"] = _together(f"{stem}.{whole}.weight", first, second)
    return list(found.values())


def _together(name: str, first: Counts, second: Counts) -> Counts:
    """The rows of both in one matrix; plain numbers where they are packed in different ways."""
    held = None
    if first.held is not None and second.held is not None:
        rows, *columns = first.held.shape
        packing = first.held.packing if first.held.packing == second.held.packing else None
        held = Tensors((rows + second.held.shape[0], *columns), packing)
    return Counts(name, first.parameters + second.parameters, first.bytes + second.bytes, held)


def _gguf_held(tensor: Stored) -> Tensors | None:
    if tensor.dtype in LAYOUTS:
        return Tensors(tensor.shape, packing_of(LAYOUTS[tensor.dtype]))
    return Tensors(tensor.shape, None) if SIZES[tensor.dtype][0] == 1 else None


def _known(file: Path, weights: str | None) -> ModelSpec:
    known = json.loads(file.read_text())
    return _configured(file.stem, known["config"], f"known model {file.stem}", weights)


def _from_hub(hub_id: str, weights: str | None, hub: Hub) -> ModelSpec:
    downloaded = hub.downloaded(hub_id)
    if downloaded is not None:
        return replace(_directory(downloaded, weights), name=hub_id)
    file = f"{hub_id}: config.json"
    config = _hub_config(hub_id, hub)
    if weights and read_shape(config, file).known:
        return _configured(hub_id, config, file, weights)  # without asking the hub for more
    index = hub.file(hub_id, INDEX)
    if index is not None:
        what = f"{hub_id}: {INDEX}"
        return _indexed(hub_id, config, file, parse_index(parse_json(index, what), what), weights)
    header = hub.safetensors_header(hub_id)
    if header is None:
        return _configured(hub_id, config, file, weights)
    stored = parse_header(header, f"{hub_id}: {SINGLE}")
    if weights:
        return _indexed(hub_id, config, file, index_of(stored), weights)
    return _of_headers(hub_id, config, file, stored)


def _hub_config(hub_id: str, hub: Hub) -> Any:
    text = hub.file(hub_id, "config.json", CONFIG_BYTES)
    if text is None:
        raise ModelError(f"{hub_id}: {hub.endpoint} knows no such model, or it has no config.json")
    return parse_json(text, f"{hub_id}: config.json")


def _indexed(name: str, config: Any, file: str, index: Index, weights: str | None) -> ModelSpec:
    """By arithmetic, held against the index: which tensors there are, and their bytes in all. With other ``weights``
    these are as many times what arithmetic gives as with those of the index."""
    shape = read_shape(config, file)
    storage = format_of(shape.fields)
    shape = replace(shape, tied=not any(place_of(each) == "head" for each in index.files if layer_of(each) is None))
    arithmetic = count(name, shape, expected(shape, storage), "index", storage)
    confirmed = _confirmed(arithmetic, shape, index)
    if not weights:
        return confirmed
    storage = named_format(weights)
    other = replace(count(name, shape, expected(shape, storage), "index", storage), notes=confirmed.notes)
    if confirmed.bytes == arithmetic.bytes:
        return other
    return scaled(other, round(other.bytes * confirmed.bytes / arithmetic.bytes))


def _confirmed(spec: ModelSpec, shape: Shape, index: Index) -> ModelSpec:
    """``spec`` by arithmetic, scaled where the index says that it has other bytes."""
    total = index.total_bytes
    if total is None or abs(total - spec.bytes) <= CLOSE * total:
        return spec
    if _has_more(shape, index) and total > spec.bytes:
        note = f"{total - spec.bytes:,} bytes of the files are no part of decoding (such as multi-token prediction)"
        return replace(spec, notes=(*spec.notes, note))
    note = f"the index says {total:,} bytes, arithmetic {spec.bytes:,}: the layers are scaled to fit"
    return replace(scaled(spec, total), notes=(*spec.notes, note))


def _has_more(shape: Shape, index: Index) -> bool:
    """Whether the index holds tensors that are no part of the language model's decoding."""
    for name in index.files:
        within = layer_of(name)
        if within[0] >= len(shape.layers) if within else place_of(name) == "elsewhere":
            return True
    return False

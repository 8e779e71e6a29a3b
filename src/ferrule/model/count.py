"""Add up the tensors of a model to what the planner weighs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from ferrule.errors import ModelError, PlanError
from ferrule.model.families.encoders import WHOLE, is_unused
from ferrule.model.families.family import Cuts
from ferrule.model.families.mixer_tensors import delta_projections
from ferrule.model.families.shape import LayerShape, Shape
from ferrule.model.families.tensors import tensors_of
from ferrule.model.holding import MOST_COMPUTED_BYTES, Holding, Tensors
from ferrule.model.layer import AttentionSpec, Collective, Kind, LayerSpec, LayerWeights, Weights
from ferrule.model.names import Place, Role, layer_of, named_by_part, place_of, role_of
from ferrule.model.packing import Pieces
from ferrule.model.spec import Counted, ModelSpec
from ferrule.model.split import no_plan
from ferrule.model.storage import Format

CLOSE = 0.01
"""Bytes that differ by no more than this part of them are taken for those of the same tensors."""


@dataclass(frozen=True)
class Counts:
    """One tensor as it is stored: its ``parameters`` (0 for scales) and ``bytes``. ``held``: what the engine makes of
    it; None where that is not known."""

    name: str
    parameters: int
    bytes: int
    held: Tensors | None = None


def expected(shape: Shape, storage: Format) -> list[Counts]:
    """Tensors that a model of ``shape`` must hold when it is stored in ``storage``."""
    return [
        Counts(tensor.name, tensor.parameters, storage.bytes(tensor), storage.held(tensor))
        for tensor in tensors_of(shape)
    ]


def count(name: str, shape: Shape, tensors: Iterable[Counts], counted: Counted, storage: Format) -> ModelSpec:
    """A `ModelSpec` of ``tensors`` that make a model of ``shape``, stored in ``storage``.

    Raises `ModelError` where a layer has none.
    """
    cuts, holding = shape.family.cuts, _holding(shape, storage)
    layers: list[defaultdict[Kind, Weights]] = [defaultdict(Weights) for _ in shape.layers]
    places: defaultdict[str, Weights] = defaultdict(Weights)
    for tensor in tensors:
        if shape.encoder and is_unused(tensor.name):
            places["elsewhere"] += Weights(tensor.parameters, tensor.bytes, tensor.bytes)
            continue
        within = layer_of(tensor.name)
        if within is None:
            place = place_of(tensor.name)
            if place == "vision" and not shape.sees:
                place = "elsewhere"
            if place is not None:
                cut = place == "head" or (place == "embedding" and "per_layer" not in tensor.name)
                places[place] += _weights(tensor, cut, holding, place)
            continue
        index, leaf = within
        if index >= len(layers):
            places["elsewhere"] += Weights(tensor.parameters, tensor.bytes, tensor.bytes)
            continue
        layer = shape.layers[index]
        if shape.family.mixer is not None:
            leaf = named_by_part(leaf, attention=layer.attention is not None, mixer=layer.mixer is not None)
        role = role_of(leaf, cuts)
        if role is not None and role.kind == "shared" and layer.experts is None and shape.known:
            role = replace(role, kind="dense")  # Granite's, which is alone then
        if role is not None:
            _add(layers[index], tensor, role, layer.attention, cuts, holding)
    empty = next((index for index, weights in enumerate(layers) if not weights), None)
    if empty is not None and (shape.known or shape.encoder):
        raise ModelError(f"{name} holds no weights for layer {empty} of the {len(layers)} in its config.json")
    tied = "head" not in places
    return ModelSpec(
        name=name,
        architecture=shape.architecture,
        model_type=shape.model_type,
        decoder=tuple(_layer(shape, each, weights, cuts) for each, weights in zip(shape.layers, layers, strict=True)),
        embedding=places["embedding"],
        head=Weights() if shape.encoder else _table(shape, places["embedding"]) if tied else places["head"],
        final=places["final"],
        tied=tied,
        hidden_size=shape.hidden_size,
        query_heads=shape.query_heads,
        key_value_heads=shape.key_value_heads,
        vocab_size=shape.vocab_size,
        max_context=shape.max_context,
        activation_bytes=float(storage.plain),
        stored=storage.text,
        counted=counted,
        tensor_refusal=_refusal(shape, "tensor parallel", shape.family.tensor),
        pipeline_refusal=_refusal(shape, "pipeline", shape.family.stages),
        expert_refusal=_expert_refusal(shape),
        notes=_notes(shape, places["elsewhere"], places["vision"]),
        known_family=shape.known or shape.encoder,
        streams=shape.streams,
        vision=places["vision"],
        encoder=shape.encoder,
    )


def lacking(shape: Shape, tensors: Iterable[Counts]) -> str | None:
    """The first weight that a layer lacks, though another layer of the same shape has it; None where there is none, or
    not every kind of layer is known. (Not of indexers: which layers have one is not told by their shapes; nor of
    biases and scales, which quantised modules have and others in other layers have not. `count` tells of a layer that
    has nothing.)"""
    if not shape.known or shape.other_layers:
        return None
    there: list[dict[str, str]] = [{} for _ in shape.layers]
    of_equals: defaultdict[LayerShape, dict[str, tuple[str, int]]] = defaultdict(dict)
    for tensor in tensors:
        within = layer_of(tensor.name)
        compared = tensor.name.endswith(".weight") and ".indexer." not in tensor.name
        if within is not None and within[0] < len(there) and compared:
            there[within[0]][within[1]] = tensor.name
    for number, layer in enumerate(shape.layers):
        of_equals[layer] |= {leaf: (name, number) for leaf, name in there[number].items()}
    for number, layer in enumerate(shape.layers):
        missing = sorted(of_equals[layer].keys() - there[number].keys()) if there[number] else []
        if missing:
            name, other = of_equals[layer][missing[0]]
            return name.replace(f".{other}.", f".{number}.", 1)
    return None


def _table(shape: Shape, embedding: Weights) -> Weights:
    """The token table alone, which a tied head uses, of everything that counts as embedding."""
    parameters = shape.vocab_size * shape.hidden_size
    if not 0 < parameters < embedding.parameters:
        return embedding
    size = embedding.bytes * parameters // embedding.parameters
    return Weights(parameters, size, min(size, embedding.whole) if embedding.whole == embedding.bytes else 0, None)


def _holding(shape: Shape, storage: Format) -> Holding:
    return Holding(
        program=any(layer.program_operations is not None for layer in shape.layers),
        number_bytes=min(storage.plain, MOST_COMPUTED_BYTES),
        whole_experts=shape.family.cuts.experts == "whole",
        inputs_first=shape.family.experts_inputs_first,
        float32_router=shape.family.float32_router,
        float32_steps=shape.family.mixer == "kda",
        float32_vectors=shape.family.attention == "compressed",
        gated_experts=shape.family.mlp != "plain",
    )


def _weights(
    tensor: Counts, cut: bool, holding: Holding, kind: Kind | Place, attention: AttentionSpec | None = None
) -> Weights:
    pieces: Pieces | None = None
    if tensor.held is not None:
        pieces = holding.pieces(tensor.name, tensor.held, kind, cut=cut, attention=attention)
    elif not tensor.parameters:  # scales: they are held with their codes
        pieces = frozenset()
    return Weights(tensor.parameters, tensor.bytes, 0 if cut else tensor.bytes, pieces)


def _add(
    layer: defaultdict[Kind, Weights],
    tensor: Counts,
    role: Role,
    attention: AttentionSpec | None,
    cuts: Cuts,
    holding: Holding,
) -> None:
    by_kind = {
        "attention": cuts.attention is not None and (cuts.sinks or not role.sinks),
        "key_value": cuts.attention is not None,
        "mixer": cuts.mixer,
        "dense": cuts.dense,
        "shared": cuts.shared,
        "routed": cuts.experts is not None,
    }
    cut = role.cut and by_kind.get(role.kind, False)
    if not role.fused or attention is None:
        layer[role.kind] += _weights(tensor, cut, holding, role.kind, attention)
        return
    query = attention.query_heads * attention.key_width
    rest = attention.key_value_heads * (attention.key_width + attention.value_width)
    rest_of = _some(tensor, rest, query + rest)
    layer["key_value"] += _weights(rest_of, cut, holding, "key_value")
    whole = _some(tensor, query, query + rest)
    others = replace(whole, parameters=tensor.parameters - rest_of.parameters, bytes=tensor.bytes - rest_of.bytes)
    layer["attention"] += _weights(others, cut, holding, "attention")


def _some(tensor: Counts, rows: int, of: int) -> Counts:
    """``rows`` of ``of`` outputs of a tensor."""
    held = tensor.held
    if held is not None and held.shape:
        held = replace(held, shape=(held.shape[0] * rows // of, *held.shape[1:]))
    return Counts(tensor.name, tensor.parameters * rows // of, tensor.bytes * rows // of, held)


def _layer(shape: Shape, layer: LayerShape, weights: defaultdict[Kind, Weights], cuts: Cuts) -> LayerSpec:
    return LayerSpec(
        weights=LayerWeights(**{each.name: weights[each.name] for each in fields(LayerWeights)}),  # type: ignore[index]
        attention=layer.attention,
        mixer=layer.mixer,
        experts=layer.experts,
        width=layer.shared_width if layer.experts else layer.width,
        heads_cut=cuts.attention == "heads",
        collectives=_collectives(shape, layer),
        program_operations=layer.program_operations,
    )


def _collectives(shape: Shape, layer: LayerShape) -> tuple[Collective, ...]:
    """One sum for each part of a layer that ends in a row-wise product: attention, dense part, experts, shared ones.
    Columns that are gathered before attention, and those of a mixer's projections, cost one gathering each."""
    cuts, attention = shape.family.cuts, layer.attention
    total, found = Collective("all_reduce", shape.hidden_size), []
    if attention is not None and cuts.attention == "gathered":
        widths = (attention.query_heads * attention.key_width, attention.key_value_heads * attention.key_width)
        found += [Collective("all_gather", width) for width in widths]
        found += [Collective("all_gather", attention.key_value_heads * attention.value_width)]
    if attention is not None and cuts.attention is not None:
        found.append(total)
    if layer.mixer is not None and cuts.mixer:
        found += [Collective("all_gather", width) for width in delta_projections(shape).values()]
    if layer.experts is None:
        return (*found, total) if cuts.dense and layer.width else tuple(found)
    routed = [Collective("all_reduce", shape.expert_inputs)] if cuts.experts else []
    return (*found, *routed, *([total] if layer.shared_width and cuts.shared else []))


def _refusal(shape: Shape, kind: str, possible: bool) -> str | None:
    if shape.encoder:
        return WHOLE
    if not shape.known:
        return f"nothing is known here of how to split {shape.model_type or shape.architecture}"
    return None if possible else no_plan(kind, shape.architecture)


def _expert_refusal(shape: Shape) -> str | None:
    if all(layer.experts is None for layer in shape.layers):
        return f"{shape.architecture} has no experts"
    if shape.family.experts_together:
        return f"all experts of {shape.architecture} compute every token, so that none is given out whole"
    return _refusal(shape, "expert parallel", shape.family.tensor)


def _notes(shape: Shape, elsewhere: Weights, vision: Weights) -> tuple[str, ...]:
    notes = []
    if shape.multimodal and not vision.bytes:
        notes.append("only the language model is counted; what sees or hears is not")
    elif elsewhere.bytes:
        part = "the encoder (such as a pooler)" if shape.encoder else "decoding (such as multi-token prediction)"
        notes.append(f"{elsewhere.bytes:,} bytes of the files are no part of {part}")
    if shape.encoder:
        notes.append("an encoder: embeddings only, on one rank")
    if shape.other_layers:
        kinds = ", ".join(shape.other_layers)
        notes.append(f"layers of kind {kinds} are counted as full attention, so cache and arithmetic are upper bounds")
    return tuple(notes)


def scaled(spec: ModelSpec, size: int) -> ModelSpec:
    """``spec`` with its layers' weights scaled so that it has ``size`` bytes in all, for formats of which only the
    total is known. Norms, embedding and head stay."""
    fixed = spec.bytes - sum(spec.layer_bytes) + sum(layer.weights.norm.bytes for layer in spec.decoder)
    ratio = (size - fixed) / (spec.bytes - fixed)
    if ratio <= 0:
        raise PlanError(f"{spec.name}: the weights are said to have {size:,} bytes, less than embedding and norms need")

    def resized(weights: Weights) -> Weights:
        return Weights(weights.parameters, round(weights.bytes * ratio), round(weights.whole * ratio), None)

    decoder = []
    for layer in spec.decoder:
        kinds = {each.name: getattr(layer.weights, each.name) for each in fields(LayerWeights)}
        changed = {kind: weights if kind == "norm" else resized(weights) for kind, weights in kinds.items()}
        decoder.append(replace(layer, weights=LayerWeights(**changed)))
    return replace(spec, decoder=tuple(decoder))


def held_as(spec: ModelSpec, other: ModelSpec) -> ModelSpec:
    """``spec`` with what ``other``, the same model by arithmetic, says of how the engine holds weights: of each kind of
    each layer that takes as many bytes there, or `CLOSE` to that."""

    def known(own: Weights, told: Weights) -> Weights:
        alike = own.parameters == told.parameters and abs(own.bytes - told.bytes) <= CLOSE * own.bytes
        return replace(own, pieces=told.pieces) if own.pieces is None and alike else own

    decoder = []
    for layer, told in zip(spec.decoder, other.decoder, strict=True):
        kinds = {
            each.name: known(getattr(layer.weights, each.name), getattr(told.weights, each.name))
            for each in fields(LayerWeights)
        }
        decoder.append(replace(layer, weights=LayerWeights(**kinds)))
    return replace(
        spec,
        decoder=tuple(decoder),
        embedding=known(spec.embedding, other.embedding),
        head=known(spec.head, other.head),
        final=known(spec.final, other.final),
    )

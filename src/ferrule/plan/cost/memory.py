"""Memory use of a plan: bytes of the model on each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ferrule.model.layer import LayerSpec, Share
from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.spec import DeviceSpec
from ferrule.plan.plan import Plan, Stage
from ferrule.plan.prediction import MemoryUse
from ferrule.plan.question import Question


def memory_of(question: Question, plan: Plan) -> tuple[MemoryUse, ...]:
    """By rank."""
    return tuple(
        _use(question, question.cluster.by_name[name], stage, share, weights, drafts=rank == plan.driver)
        for rank, ((stage, name, share), weights) in enumerate(
            zip(_ranks(plan), weight_bytes(question.held, plan), strict=True)
        )
    )


def _ranks(plan: Plan) -> Iterator[tuple[Stage, str, Share]]:
    for stage in plan.stages:
        for name, share in zip(stage.devices, stage.shares, strict=True):
            yield stage, name, share


def weight_bytes(model: ModelSpec, plan: Plan) -> tuple[int, ...]:
    """Bytes of weights by rank: as they are stored, or of `ModelSpec.in_engine` as the built-in engine holds them. The
    driver's are with those of a model that drafts."""
    draft = 0 if model.draft is None else model.draft.bytes
    return tuple(
        model.rank_bytes(
            share, vocabulary_of(model, stage, share), first_layer=stage.first_layer, last_layer=stage.last_layer
        )
        + draft * (rank == plan.driver)
        for rank, (stage, _, share) in enumerate(_ranks(plan))
    )


def _use(
    question: Question, device: DeviceSpec, stage: Stage, share: Share, weights: int, *, drafts: bool
) -> MemoryUse:
    work = question.work
    keys, state = cache_bytes(question, stage, share, work.context), state_bytes(question, stage)
    keys += draft_bytes(question, work.context) * drafts
    cache = (keys + state) * work.concurrency
    activations = activation_bytes(question, stage, share)
    room = question.runtime.cache_room(question.model, work.context, work.concurrency)
    reserve = keys * room.keys + state * room.state - cache
    return MemoryUse(
        device.name, weights, round(cache), activations, device.runtime_bytes, device.memory, round(reserve)
    )


def vocabulary_of(model: ModelSpec, stage: Stage, share: Share) -> float:
    """The part of embedding and output matrix that a device of ``stage`` with ``share`` of it holds."""
    if stage.width == 1 or all(each.width == 1.0 for each in stage.shares):
        return 1.0
    return model.vocabulary_share(stage.width) if stage.even else share.width


def cache_bytes(question: Question, stage: Stage, share: Share, tokens: int) -> float:
    """Of the keys and values of one sequence of ``tokens`` tokens."""
    policy = question.runtime.cache_of(question.model)
    whole = sum(layer.cache_bytes(tokens, policy, share) * count for layer, count in _kinds(question.model, stage))
    return whole * stage.cache_part


def draft_bytes(question: Question, tokens: int) -> float:
    """Of the keys and values that a model which drafts keeps of one sequence, on the driver."""
    draft = question.model.draft
    return 0.0 if draft is None else draft.cache_bytes(tokens, question.runtime.cache_of(draft))


def state_bytes(question: Question, stage: Stage) -> float:
    """Of what recurrent layers keep of one sequence."""
    policy = question.runtime.cache_of(question.model)
    return sum(layer.state_bytes(policy) * count for layer, count in _kinds(question.model, stage))


def _kinds(model: ModelSpec, stage: Stage) -> list[tuple[LayerSpec, int]]:
    """The stage's different layers, and how many there are of each."""
    layers = model.alike[stage.first_layer : stage.last_layer]
    by_identity = {id(layer): layer for layer in layers}
    return [(by_identity[identity], count) for identity, count in Counter(map(id, layers)).items()]


def activation_bytes(question: Question, stage: Stage, share: Share) -> int:
    """Memory of one pass: hidden states in and out, the widest part of a layer, scores of one head's worth of queries,
    and logits of all sequences on the last stage. An engine reuses it from layer to layer."""
    model, work, runtime = question.model, question.work, question.runtime
    rows = max(1, min(runtime.batch_tokens, work.prompt * work.concurrency))
    if model.encoder:  # which takes a text whole
        rows = max(rows, min(work.context, model.max_context))
    wide = 0.0
    for layer, _ in _kinds(model, stage):
        attention, mixing = layer.attention, 0.0 if layer.mixer is None else 3.0 * layer.mixer.channels
        if attention is not None:
            heads = share.query * attention.query_heads * (attention.key_width + attention.value_width)
            mixing = max(mixing, 2 * heads + attention.elements)
        width = share.width * layer.width
        if layer.experts is not None:
            width = max(width, layer.experts.per_token * layer.experts.width)
        wide = max(wide, mixing, 3 * width)
    size = rows * (4 * model.streams * model.hidden_size + wide) * runtime.activation_bytes
    if stage.last_layer == model.layers and not model.encoder:
        size += min(rows, work.concurrency) * model.vocab_size * 4 * 2
    return round(size)


def largest_context(question: Question, plan: Plan) -> int:
    """Tokens of each of the concurrent sequences that all devices have room for, and that the engine then serves; 0
    where not even weights fit."""
    uses, concurrency = memory_of(question, plan), question.work.concurrency

    def fits(tokens: int) -> bool:
        room = question.runtime.cache_room(question.model, tokens, concurrency)
        return all(
            use.total
            - use.cache
            + round(
                (cache_bytes(question, stage, share, tokens) + draft_bytes(question, tokens) * (rank == plan.driver))
                * room.keys
                + state_bytes(question, stage) * room.state
            )
            <= use.room
            for rank, (use, (stage, _, share)) in enumerate(zip(uses, _ranks(plan), strict=True))
        )

    if not fits(1):
        return 0
    low, high = 1, max(1, question.model.max_context)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low

"""Memory for a rank's weights where some are read from disk: as the user says, or as much as leaves room for caches."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from ferrule.engine.devices import Device
from ferrule.engine.options import AS_NEEDED, RankOptions
from ferrule.engine.rank.cache.codes import Codes
from ferrule.engine.rank.model import Blueprint
from ferrule.engine.rank.step.load import held_bytes
from ferrule.engine.rank.step.operations import CacheLayer, Description
from ferrule.engine.rank.stream.weights import StreamedWeights
from ferrule.engine.shards.messages import sharing
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.fabric import Group
from ferrule.plan import BUILT_IN_ENGINE
from ferrule.units import format_bytes

log = logging.getLogger(__name__)

CACHED_TOKENS = 4096
"""For which caches have room where weights take the rest."""
_SPARE_PART = 1 / 16


def streamed_weights(
    options: RankOptions,
    world: Group,
    device: Device,
    description: Description,
    blueprint: Blueprint,
    checkpoint: Checkpoint,
) -> StreamedWeights | None:
    """Those of this rank; None where they stay in memory. All ranks call it. Raises `EngineError`."""
    if options.stream_weights is None:
        return None
    room, held, dtype = options.stream_weights, held_bytes(blueprint, checkpoint), blueprint.dtype
    if room == AS_NEEDED:
        free = device.memory_free() // sharing(world, device.memory_name) // (options.copies_left + 1)
        per_token = token_bytes(description.layers, dtype, Codes.of(options.kv_cache))
        room = weights_room(free, per_token * min(options.context, CACHED_TOKENS))
    if held <= room:
        log.info("weights stay in memory: %s of %s", format_bytes(held), format_bytes(room))
        return None
    return StreamedWeights(options, world.rank, description, dtype, held, room)


def token_bytes(layers: Sequence[CacheLayer], dtype: torch.dtype, codes: Codes | None) -> int:
    """Of keys and values of one token."""
    if codes is None:
        return sum(each.heads * (each.width + each.value_width) for each in layers) * dtype.itemsize
    return sum(each.heads * (codes.bytes_of(each.width) + codes.bytes_of(each.value_width)) for each in layers)


def weights_room(free: int, cache: int) -> int:
    """Bytes for weights of ``free`` ones, so that caches of ``cache`` bytes have room beside."""
    return max(0, round(free * (1 - _SPARE_PART) - cache / BUILT_IN_ENGINE.cache_share))

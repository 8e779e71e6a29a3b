"""Weights that are read from disk with every pass, of an engine that reads ahead: what has no room in memory."""

from __future__ import annotations

from typing import NamedTuple

from ferrule.model.layer import Share
from ferrule.model.spec import ModelSpec
from ferrule.plan.plan import Stage

BUFFERS = 2
"""Layers that have room in memory to be read into; the engine plans between one and eight."""


class FromDisk(NamedTuple):
    """Bytes of one pass: of what all tokens need, which is read while other layers are computed with, and of experts,
    which are read when tokens have chosen them."""

    ahead: float = 0.0
    chosen: float = 0.0


def from_disk(model: ModelSpec, stage: Stage, share: Share, missing: int, rows: int) -> FromDisk | None:
    """Of a pass of ``rows`` tokens on a device with ``share`` of the layers of ``stage`` in memory, but for ``missing``
    bytes; None where even without all layers something is missing. Experts go first. Of those that are not in memory
    tokens need as large a part as of all: routers' favourites, which stay, make that less."""
    layers = model.alike[stage.first_layer : stage.last_layer]
    routed = [0.0 if layer.experts is None else layer.weights.routed.held(share.experts) for layer in layers]
    dense = [layer.held_bytes(share) - part for layer, part in zip(layers, routed, strict=True)]
    touched = sum(
        part * layer.experts.touched(rows) / layer.experts.count
        for layer, part in zip(layers, routed, strict=True)
        if layer.experts is not None
    )
    experts = sum(routed)
    if missing <= experts:
        return FromDisk(0.0, touched * missing / experts)
    ahead = missing - experts + BUFFERS * max(dense)
    return FromDisk(ahead, touched) if ahead <= sum(dense) else None

"""The ways to cut layers over some devices that the search looks at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ferrule.model.layer import Share
from ferrule.plan.plan import shares_by
from ferrule.plan.search.stages.classes import traits
from ferrule.plan.search.stages.costs import Cutting, Measure, StageCosts
from ferrule.plan.search.stages.shares import whole_shares

TOKEN = Measure("token")
FINE = 64
Pieces = tuple[float, float, int, float]
"""Of a device: seconds for no piece of a layer, seconds for each, the most pieces it has room for, its memory."""


def cuttings_of(costs: StageCosts, devices: Sequence[str]) -> list[Cutting]:
    """One device: whole. Several: evenly, or as near to that as heads allow; in proportion to the devices' speed, to
    that within their memory, and to their memory, with columns in `FINE` pieces or by whole key/value heads as these;
    routed experts given out whole in the same three proportions, with attention cut evenly or whole on each device, and
    all tokens on every device or sent to their experts. Each only once."""
    names = tuple(devices)
    if len(names) == 1:
        return [Cutting(names)]
    found: dict[Cutting, None] = {}
    heads = list(_by_head(costs, names))
    for shares in heads:
        found.setdefault(Cutting(names, shares))
    if any(layer.experts for layer in costs.model.decoder):
        attention = [heads[0]] if heads else []
        for experts in _experts(costs, names):
            for base in (*attention, (Share(),) * len(names)):
                shares = tuple(share._replace(experts=part) for share, part in zip(base, experts, strict=True))
                found.setdefault(Cutting(names, shares, experts=True))
                if costs.exchanges:
                    shares = tuple(share._replace(shared=1.0) for share in shares)
                    found.setdefault(Cutting(names, shares, experts=True, exchange=True))
    return list(found)


def _by_head(costs: StageCosts, names: tuple[str, ...]) -> Iterator[tuple[Share, ...]]:
    model, count = costs.model, len(names)
    heads = model.key_value_heads
    if model.query_heads < count or model.query_heads % heads:
        return
    yield shares_by(model, (1.0,) * count)
    if alike(costs, names):
        return

    def cut(part: float) -> Share:
        return Share(part, part, part, part, part)

    for given in _proportions(costs, names, cut(1 / FINE), FINE):
        yield shares_by(model, given)
    for given in _proportions(costs, names, cut(1 / heads), heads):
        yield tuple(cut(each / heads) for each in given)


def _experts(costs: StageCosts, names: tuple[str, ...]) -> Iterator[tuple[float, ...]]:
    count = max(layer.experts.count for layer in costs.model.decoder if layer.experts)
    for given in _proportions(costs, names, Share(experts=1 / count), count):
        yield tuple(each / count for each in given)


def _pieces(costs: StageCosts, name: str, least: Cutting, total: int) -> Pieces:
    """By what it needs for all ``total`` pieces of each layer and for one, between which both are linear."""
    if least in costs.pieces:
        return costs.pieces[least]
    whole = Cutting((name,))
    seconds = [float(costs.table(each, TOKEN).by_layer.sum()) for each in (least, whole)]
    bytes_ = [costs.part_of_memory(name, share).all_held for share in (*least.shares, Share())]
    room = float(costs.cluster.by_name[name].memory)
    each = (bytes_[1] - bytes_[0]) / (total - 1) if total > 1 else bytes_[1]
    most = 1 + math.floor((room - bytes_[0]) / each) if each > 0 else total
    per_piece = (seconds[1] - seconds[0]) / (total - 1) if total > 1 else seconds[1]
    costs.pieces[least] = (seconds[0] - per_piece, max(per_piece, 1e-12), most, room)
    return costs.pieces[least]


def _proportions(costs: StageCosts, names: tuple[str, ...], piece: Share, total: int) -> Iterator[tuple[int, ...]]:
    """Of ``total`` pieces such as ``piece``: by speed; by speed within memory; by memory."""
    pieces = [_pieces(costs, name, Cutting((name,), (piece,)), total) for name in names]
    before, seconds, most, rooms = zip(*pieces, strict=True)
    key = (names, piece)
    if key not in costs.proportions:
        costs.proportions[key] = (
            whole_shares(total, seconds, before=before),
            whole_shares(total, [1 / room for room in rooms]),
        )
    by_speed, by_memory = costs.proportions[key]
    within = by_speed
    if by_speed is not None and any(given > limit for given, limit in zip(by_speed, most, strict=True)):
        within = whole_shares(total, seconds, before=before, most=most)
    yield from dict.fromkeys(shares for shares in (by_speed, within, by_memory) if shares is not None)


def alike(costs: StageCosts, names: Sequence[str]) -> bool:
    return len({traits(costs.cluster.by_name[name]) for name in names}) == 1

"""Plans with unequal shares, whole experts, and stages of different width."""

from __future__ import annotations

from ferrule.model import ModelSpec, Share
from ferrule.plan import Plan, Stage, shares_by

BY_SPEED = (4.0, 2.0, 1.0)


def shares_of(spec: ModelSpec, speeds: tuple[float, ...], experts: tuple[float, ...] = ()) -> tuple[Share, ...]:
    """By ``speeds``, of ``experts`` by these."""
    parts = zip(shares_by(spec, speeds), experts or speeds, strict=True)
    return tuple(share._replace(experts=part / sum(experts or speeds)) for share, part in parts)


def alone(*experts: float) -> tuple[Share, ...]:
    """Of whole experts so many, and of all else everything on every rank."""
    return tuple(Share(experts=each / sum(experts)) for each in experts)


def plan_of(spec: ModelSpec, *stages: tuple[Share, ...], experts: bool = False, exchange: bool = False) -> Plan:
    """Stages of these shares and, of all layers, about as many each. ``exchange``: with shared experts whole."""
    made, at, rank = [], 0, 0
    for number, shares in enumerate(stages):
        end = spec.layers * (number + 1) // len(stages)
        names = tuple(f"rank-{rank + place}" for place in range(len(shares)))
        wide = len(shares) > 1
        if exchange:
            shares = tuple(share._replace(shared=1.0) for share in shares)
        made.append(Stage(names, at, end, shares, experts and wide, exchange and wide))
        at, rank = end, rank + len(shares)
    return Plan(tuple(made))

"""The cut of `ferrule.plan.cut`, written as a mixed-integer linear program and solved by HiGHS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from ferrule.plan.cut import Aim, Cut, Floats, StageTable


def cut_layers_milp(stages: Sequence[StageTable], aim: Aim) -> Cut | None:
    """The same as `cut_layers`, by HiGHS (Huangfu and Hall, 2018) through `scipy.optimize.milp`.

    As in Halda (prima.cpp; distilp) layers are shared out in whole numbers under memory limits and the time is linear
    in them; here each layer has costs of its own and the ends of the model count where they are. Binary ``y[s, l]``
    says that layer l is on stage s or an earlier one: it falls with l, rises with s, and each stage takes at least one
    layer. Stage s has layer l where ``y[s, l] - y[s - 1, l]`` is 1. ``max`` adds one variable above all stages' times.
    """
    count, layers = len(stages), stages[0].layers
    if count > layers:
        return None
    if count == 1:
        seconds = float(stages[0].runs[0, layers])
        return Cut(seconds, (layers,)) if np.isfinite(seconds) else None
    size = (count - 1) * layers  # the last stage's y is 1 everywhere
    extra = 1 if aim == "max" else 0
    rows: list[tuple[Floats, float]] = []  # row @ x <= limit

    def variable(stage: int, layer: int) -> Floats:
        row = np.zeros(size + extra)
        row[stage * layers + layer] = 1.0
        return row

    def load(stage: int, by_layer: Floats) -> tuple[Floats, float]:
        """Sum over the layers of a stage: a row and a constant."""
        row, constant = np.zeros(size + extra), 0.0
        if stage < count - 1:
            row[stage * layers : (stage + 1) * layers] += by_layer
        else:
            constant = float(by_layer.sum())
        if stage > 0:
            row[(stage - 1) * layers : stage * layers] -= by_layer
        return row, constant

    def ends(stage: int, always: float, first: float, last: float) -> float:
        return always + (first if stage == 0 else 0.0) + (last if stage == count - 1 else 0.0)

    lower, upper = np.zeros(size + extra), np.ones(size + extra)
    for stage in range(count - 1):
        for layer in range(layers):
            if layer + 1 < layers:
                rows.append((variable(stage, layer + 1) - variable(stage, layer), 0.0))
            if stage + 1 < count - 1:
                rows.append((variable(stage, layer) - variable(stage + 1, layer), 0.0))
        lower[stage * layers : stage * layers + stage + 1] = 1.0  # every stage up to this one has a layer
        upper[stage * layers + layers - (count - 1 - stage) : (stage + 1) * layers] = 0.0  # and so have the later ones
    for stage in range(count):
        row, constant = load(stage, np.ones(layers))
        rows.append((-row, constant - 1.0))
    objective, times = np.zeros(size + extra), []
    for stage, table in enumerate(stages):
        for use in table.memory:
            scale = max(1.0, use.room)
            row, constant = load(stage, use.by_layer / scale)
            rows.append((row, (use.room - ends(stage, use.always, use.first, use.last)) / scale - constant))
        row, constant = load(stage, table.by_layer)
        times.append((row, constant + ends(stage, table.always, table.first, table.last)))
    unit = max(float(table.by_layer.max()) for table in stages) or 1.0
    if aim == "max":
        lower[size], upper[size] = 0.0, np.inf
        objective[size] = 1.0
        for row, constant in times:
            slack = row / unit
            slack[size] = -1.0
            rows.append((slack, -constant / unit))
    else:
        objective = sum((row for row, _ in times), objective) / unit
    matrix = csr_array(np.array([row for row, _ in rows]))
    limits = LinearConstraint(matrix, -np.inf, np.array([limit for _, limit in rows]))
    integral = np.ones(size + extra)
    integral[size:] = 0
    result = milp(
        objective, constraints=limits, integrality=integral, bounds=Bounds(lower, upper), options={"mip_rel_gap": 1e-9}
    )
    if result.x is None:
        return None
    on = np.round(result.x[:size]).reshape(count - 1, layers).sum(axis=1).astype(int)
    cut = (*map(int, on), layers)
    spans = [table.runs[a, b] for table, a, b in zip(stages, (0, *cut[:-1]), cut, strict=True)]
    return Cut(float(max(spans) if aim == "max" else sum(spans)), cut)

"""Temperature of attention by position: Llama 4 multiplies queries of layers without rotary positions by a factor that
grows with their token's place in its sequence ("Scalable-Softmax", Nakanishi 2025).

transformers' module takes a forward pass for one sequence and counts from its own cache; here a pass holds tokens of
several, whose positions the model is given.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn


class _Scales:
    """Factors of one pass's queries, (1, tokens, 1): made by the first layer, for all that scale alike."""

    def __init__(self) -> None:
        self.positions: Tensor | None = None
        self.made: dict[tuple[float, float], Tensor] = {}

    def begin(self, _: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        self.positions, self.made = given["position_ids"], {}

    def of(self, floor: float, scale: float) -> Tensor:
        found = self.made.get((floor, scale))
        if found is None:
            places = cast(Tensor, self.positions).unsqueeze(-1).float() + 1.0
            found = self.made[floor, scale] = torch.log1p(torch.floor(places / floor)) * scale + 1.0
        return found


def attach(base: nn.Module) -> None:
    """Scale the queries of those layers of ``base`` that would do so by their own count of tokens. It must be called
    with ``position_ids`` of (1, tokens)."""
    tuned = [each for each in base.modules() if getattr(each, "attn_temperature_tuning", False)]
    if not tuned:
        return
    scales = _Scales()
    base.register_forward_pre_hook(scales.begin, with_kwargs=True)
    for module in tuned:
        module.attn_temperature_tuning = False  # type: ignore[assignment]
        if not module.use_rope:
            _scale(cast(nn.Module, module.q_proj), scales, float(module.floor_scale), float(module.attn_scale))  # type: ignore[arg-type]


def _scale(projection: nn.Module, scales: _Scales, floor: float, scale: float) -> None:
    """Nothing but the scaling follows the projection in those layers, which have neither rotation nor norm."""

    def scaled(_: nn.Module, args: tuple[Any, ...], queries: Tensor) -> Tensor:
        return (queries * scales.of(floor, scale)).to(queries.dtype)

    projection.register_forward_hook(scaled)

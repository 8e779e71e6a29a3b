"""Layers that read the keys and values of an earlier one (Gemma 3n's last ones), of which the cache keeps no copy."""

from __future__ import annotations

from typing import Any

from torch import nn

from ferrule.engine.rank.attention import KEPT_BY


def attach(base: nn.Module) -> None:
    """Let the layers of ``base`` that have no keys of their own read those of the layer that stores them for all of its
    kind; it comes before them."""
    stored: dict[str, int] = {}
    for module in base.modules():
        layer: Any = module
        if getattr(layer, "store_full_length_kv", False):
            stored[layer.layer_type] = layer.layer_idx
        elif getattr(layer, "is_kv_shared_layer", False):
            setattr(layer, KEPT_BY, stored[layer.layer_type])

"""Plain weights that are quantised while they are loaded (`--weights`): which tensors, and to how many bits."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.model.names import is_router, layer_of, place_of

GROUP = 32
"""Numbers of a row that share a scale of 2 bytes, as in GGUF's Q8_0 and Q4_0."""
BITS = {"int8": 8, "int4": 4}
"""Of a layer's matrices, by the name that a user gives. Embedding and head have 8 with either: a few per cent of the
bytes, and most of what 4 would cost in quality."""


def bits_on_load(weights: str, name: str, shape: Sequence[int]) -> int | None:
    """Bits of a number of tensor ``name`` of ``shape`` (outputs, inputs); None: it stays as it is stored, as norms,
    biases, routers and stacks do, and rows that are no whole groups."""
    if len(shape) != 2 or shape[1] % GROUP or not name.endswith(".weight"):
        return None
    within = layer_of(name)
    if within is None:
        return 8 if place_of(name) in ("embedding", "head") else None
    return None if is_router(within[1]) else BITS[weights]

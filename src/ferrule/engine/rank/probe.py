"""Stop a model after one of its layers, and take what that layer gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class _Stop(Exception):
    """The layers that were wanted have run."""


def output_of(layer: nn.Module, run: Callable[[], object]) -> Tensor:
    """``run`` until ``layer`` has run; its output, a row of numbers for each token."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, given: object, out: Any) -> None:
        hidden: Tensor = out[0] if isinstance(out, tuple) else out
        several = hidden.dim() == 4 and hidden.shape[0] == 1 < hidden.shape[1]  # of each token, behind it
        kept.append(hidden[0].flatten(1) if several else hidden.movedim(-2, 0).flatten(1))
        raise _Stop

    hook = layer.register_forward_hook(keep)
    try:
        run()
    except _Stop:
        pass
    finally:
        hook.remove()
    return kept[0]

"""Vectors of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ferrule.engine.types import Vector


def normalized(vector: Vector) -> Vector:
    """``vector`` with length 1; zeros stay."""
    length = np.float32(np.linalg.norm(vector))
    return np.asarray(vector / length, dtype=np.float32) if length else vector

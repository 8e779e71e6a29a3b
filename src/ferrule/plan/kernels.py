"""Efficiency of engines' kernels by the maker of devices: fitted to what others measured (``ferrule bench plan``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from ferrule.plan.cluster.spec import LAUNCH_SECONDS

ARITHMETIC = 0.6
"""Part of a maker's operations per second that large matrix products get, where nothing better is known; measured ones
are taken as they are."""


@dataclass(frozen=True)
class Kernels:
    """Efficiency of a runtime's kernels on devices of one maker, as far as these were not measured.

    ``reading``: of the bandwidth of reading memory, what products of few rows get; ``attending``: of that, what
    attention over caches gets. ``launch_seconds``: of an operation on a device whose own are `LAUNCH_SECONDS`.
    ``expert_seconds``: for each routed expert that a pass reads, beside its bytes: products of a few MB end before a
    kernel has reached its bandwidth. ``arithmetic``: of the operations per second that a maker states, what products of
    many rows get.
    """

    reading: float = 1.0
    attending: float = 1.0
    launch_seconds: float = LAUNCH_SECONDS
    expert_seconds: float = 0.0
    arithmetic: float = ARITHMETIC


PLAIN = Kernels()
"""Of an engine of which nothing is known."""


def with_others(known: Mapping[str, Kernels]) -> dict[str, Kernels]:
    """By maker, and for any other ("") the geometric mean of those that are known."""
    logs = zip(*(map(math.log, astuple(each)) for each in known.values()), strict=True)
    return {**known, "": Kernels(*(math.exp(sum(those) / len(those)) for those in map(tuple, logs)))}


APPLE, NVIDIA, AMD = 0.754, 0.507, 0.249
"""Arithmetic. AMD's stated peak needs two operations to be issued at once."""
MLX_KERNELS = with_others({"apple": Kernels(1.06, 0.812, 3.45e-6, 5.88e-6, APPLE)})
VLLM_KERNELS = with_others(
    {
        "nvidia": Kernels(1.04, 0.803, 2.22e-6, 2.83e-6, NVIDIA),
        "amd": Kernels(0.91, 0.782, 13.4e-6, 3.08e-6, AMD),
    }
)
LLAMA_CPP_KERNELS = with_others(
    {
        "apple": Kernels(0.975, 0.8, 5.65e-6, 2.88e-6, APPLE),
        "nvidia": Kernels(1.05, 0.818, 2.44e-6, 1.6e-6, NVIDIA),
        "amd": Kernels(1.04, 0.783, 3.28e-6, 2.99e-6, AMD),
    }
)
EXO_GRPC_KERNELS = with_others({"apple": Kernels(0.94, 0.799, 4.51e-6, 2.99e-6, APPLE)})

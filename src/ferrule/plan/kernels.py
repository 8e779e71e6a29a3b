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
    many rows get. ``expert_bits``: routed experts in fewer bits a parameter take as long to read as in so many.
    """

    reading: float = 1.0
    attending: float = 1.0
    launch_seconds: float = LAUNCH_SECONDS
    expert_seconds: float = 0.0
    arithmetic: float = ARITHMETIC
    expert_bits: float = 1.0


PLAIN = Kernels()
"""Of an engine of which nothing is known."""


def with_others(known: Mapping[str, Kernels]) -> dict[str, Kernels]:
    """By maker, and for any other ("") the geometric mean of those that are known."""
    logs = zip(*(map(math.log, astuple(each)) for each in known.values()), strict=True)
    return {**known, "": Kernels(*(math.exp(sum(those) / len(those)) for those in map(tuple, logs)))}


APPLE, NVIDIA, AMD = 0.754, 0.508, 0.247
"""Arithmetic. AMD's stated peak needs two operations to be issued at once."""
MLX_KERNELS = with_others({"apple": Kernels(1.06, 0.812, 3.43e-6, 5.93e-6, APPLE)})
UNPACKED = 16.0
"""Bits. vLLM on AMD is no quicker with experts in 4 of them: Qwen3.6-35B-A3B makes 180 tokens a second in BF16 and 181
by AWQ there (kyuz0, amd-strix-halo-vllm-toolboxes)."""
VLLM_KERNELS = with_others(
    {
        "nvidia": Kernels(1.03, 0.802, 2.38e-6, 3.1e-6, NVIDIA),
        "amd": Kernels(0.977, 0.774, 3.36e-6, 2.74e-6, AMD, UNPACKED),
    }
)
LLAMA_CPP_KERNELS = with_others(
    {
        "apple": Kernels(0.975, 0.8, 5.64e-6, 2.88e-6, APPLE),
        "nvidia": Kernels(1.05, 0.821, 2.44e-6, 1.6e-6, NVIDIA),
        "amd": Kernels(1.04, 0.783, 3.29e-6, 2.96e-6, AMD),
    }
)
EXO_GRPC_KERNELS = with_others({"apple": Kernels(0.94, 0.799, 4.5e-6, 2.99e-6, APPLE)})

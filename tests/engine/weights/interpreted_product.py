"""Products by the Triton kernel in Triton's interpreter, which a process chooses before it imports Triton.

As a program it prints a JSON object: for each of `CASES` the largest error, as part of the largest number. The
interpreter multiplies bfloat16 as whole numbers, so that type is left to `ferrule self check` on hardware.
"""

from __future__ import annotations

import json
import os
import sys

import torch

from ferrule.engine.selftest.device_check import _PACKED, random_groups
from ferrule.engine.weights.device_matrix import hold
from ferrule.model.gguf.types import LAYOUTS
from ferrule.model.packing import GroupLayout

LAYOUT = {
    **LAYOUTS,
    **_PACKED,
    "E5M2": GroupLayout(8, 64, "bf16", values="e5m2"),
    "3 bits": GroupLayout(3, 64, "f16", zero=4),
    "6 bits": GroupLayout(6, 128, "f16", offsets=True),
    "a row": GroupLayout(8, 0, "f32", zero=128),
}
ODD = [(1, 32), (31, 96), (33, 64), (70, 352), (2, 4864)]
CASES: dict[str, tuple[str, int, int, int, str]] = {
    **{f"{name}": (name, 40, 512, 3, "float32") for name in LAYOUT},
    **{f"{name} in float16": (name, 40, 512, 3, "float16") for name in ("Q8_0", "Q4_K", "AWQ")},
    **{f"{n} x {k}, {rows} rows": ("Q4_1", n, k, rows, "float32") for n, k in ODD for rows in (1, 17)},
    "70 rows": ("Q6_K", 33, 256, 70, "float32"),
}
STACK_ROWS = (1, 7, 80)


def error(layout: str, outputs: int, columns: int, rows: int, dtype: str) -> float:
    from ferrule.engine.weights import triton_product

    kind: torch.dtype = getattr(torch, dtype)
    groups = random_groups(LAYOUT[layout], outputs, columns)
    packed = hold(groups, kind, torch.device("cpu")).packed
    assert triton_product.fits(packed)
    x = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(rows)).to(kind)
    found = triton_product.multiply(packed, x)
    assert (found.dtype, found.shape) == (kind, (2, rows, outputs))
    assert triton_product.multiply(packed, x[:, :0]).shape == (2, 0, outputs)
    expected = x.float() @ torch.from_numpy(groups.numbers()).to(kind).float().T
    return float((found.float() - expected).abs().max() / expected.abs().max())


def stack_error(rows: int) -> float:
    """Of rows that take matrices of a stack: the first and the last, none, and some that are behind all."""
    from ferrule.engine.weights import triton_product

    matrices, outputs, columns = 5, 24, 512
    groups = random_groups(LAYOUT["Q4_K"], matrices * outputs, columns)
    packed = hold(groups, torch.float32, torch.device("cpu")).packed
    generator = torch.Generator().manual_seed(rows)
    chosen = torch.randint(0, matrices + 1, (rows,), generator=generator).sort().values
    chosen[chosen == 2] = 1
    ends = torch.searchsorted(chosen, torch.arange(matrices), right=True).int()
    x = torch.randn(rows, columns, generator=generator)
    found = triton_product.multiply_stack(packed, x, ends)[: ends[-1]]
    numbers = torch.from_numpy(groups.numbers()).view(matrices, outputs, columns)
    expected = torch.stack([numbers[matrix] @ row for matrix, row in zip(chosen, x[: ends[-1]], strict=False)])
    return float((found - expected).abs().max() / expected.abs().max())


def main() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    found = {name: error(*case) for name, case in CASES.items()}
    json.dump(found | {f"a stack, {rows} rows": stack_error(rows) for rows in STACK_ROWS}, sys.stdout)


if __name__ == "__main__":
    main()

"""Compile the Triton kernel for a GPU that need not be here: ``BACKEND ARCHITECTURE``; prints the sizes of its code."""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ferrule.engine.weights.triton_product import NO_OFFSETS, OFFSETS, ZERO_POINTS, packed_product
from ferrule.model.packing import SUPER

NAMES = ("x", "codes", "table", "scales", "offsets", "supers", "super_offsets", "y", "blocks", "rows",
         "outputs", "columns")  # fmt: skip
KINDS = [  # four bits, table, offsets, nested, group, rows of a block, a stack
    (True, False, OFFSETS, True, 32, 16, True),
    (True, False, ZERO_POINTS, False, 128, 64, False),
    (False, True, NO_OFFSETS, False, 4096, 16, False),
]


def main(backend: str, architecture: str) -> None:
    target = GPUTarget(backend, int(architecture) if architecture.isdecimal() else architecture, 32)
    for four, table, offsets, nested, group, rows, stack in KINDS:
        scale = "*i8" if nested else "*fp16"
        shift = "*u8" if offsets == ZERO_POINTS else scale
        types = ("*bf16", "*u8", "*fp32", scale, shift, "*fp32", "*fp32", "*bf16", "*i32", "i32", "i32", "i32")
        constants = {
            "FOUR_BITS": four, "TABLE": table, "ZERO": 8, "KIND": offsets, "NESTED": nested, "GROUP": group,
            "SUPER_GROUP": SUPER, "STACK": stack, "BLOCK_M": rows, "BLOCK_N": 64, "BLOCK_K": 128,
        }  # fmt: skip
        signature = dict(zip(NAMES, types, strict=True)) | dict.fromkeys(constants, "constexpr")
        given = {(packed_product.arg_names.index(name),): value for name, value in constants.items()}
        made = triton.compile(ASTSource(packed_product, signature, given), target=target)
        sys.stdout.write(f"{len(made.asm['cubin' if backend == 'cuda' else 'hsaco'])}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

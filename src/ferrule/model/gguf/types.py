"""Types of GGUF's tensors: how many numbers a block holds, and in how many bytes (ggml.h and ggml-common.h)."""

from __future__ import annotations

from ferrule.model.packing import Packing

BLOCKS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
"""Number of the type -> its name, numbers per block, bytes per block."""

SIZES = {name: (numbers, size) for name, numbers, size in BLOCKS.values()}
"""The same by name."""

PACKINGS = {
    "Q4_0": Packing(4, 32, 2),
    "Q4_1": Packing(4, 32, 2, 2),
    "Q5_0": Packing(5, 32, 2),
    "Q5_1": Packing(5, 32, 2, 2),
    "Q8_0": Packing(8, 32, 2),
    "IQ4_NL": Packing(4, 32, 2),
    "MXFP4": Packing(4, 32, 1),
    "Q2_K": Packing(2, 16, 4, 4, nested=True),
    "Q3_K": Packing(3, 16, 4, nested=True),
    "Q4_K": Packing(4, 32, 4, 4, nested=True),
    "Q5_K": Packing(5, 32, 4, 4, nested=True),
    "Q6_K": Packing(6, 16, 4, nested=True),
    "IQ4_XS": Packing(4, 32, 4, nested=True),
}
"""Packings in which the engine holds the types that it multiplies by."""

"""Types of GGUF's tensors: numbers and bytes of a block, and what these mean (ggml.h and ggml-common.h)."""

from __future__ import annotations

from ferrule.model.packing import GroupLayout

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

LAYOUTS = {
    "Q4_0": GroupLayout(4, 32, "f16", zero=8),
    "Q4_1": GroupLayout(4, 32, "f16", offsets=True),
    "Q5_0": GroupLayout(5, 32, "f16", zero=16),
    "Q5_1": GroupLayout(5, 32, "f16", offsets=True),
    "Q8_0": GroupLayout(8, 32, "f16", zero=128),
    "IQ4_NL": GroupLayout(4, 32, "f16", values="iq4nl"),
    "MXFP4": GroupLayout(4, 32, "e8m0", values="fp4"),
    # The scales of the following are products of two numbers: of a float16 and a whole one, or float32 holds them.
    "Q2_K": GroupLayout(2, 16, "f32", offsets=True, nested=True),
    "Q3_K": GroupLayout(3, 16, "f32", zero=4, nested=True),
    "Q4_K": GroupLayout(4, 32, "f32", offsets=True, nested=True),
    "Q5_K": GroupLayout(5, 32, "f32", offsets=True, nested=True),
    "Q6_K": GroupLayout(6, 16, "f32", zero=32, nested=True),
    "IQ4_XS": GroupLayout(4, 32, "f32", values="iq4nl", nested=True),
}
"""Of the types of blocks that the engine runs: what a block's codes, scales and offsets mean."""

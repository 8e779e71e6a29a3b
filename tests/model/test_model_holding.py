"""Tensors that the built-in engine holds, by arithmetic; tests/engine/weights/test_held_bytes.py looks at them."""

from __future__ import annotations

import pytest

from ferrule.model.gguf import LAYOUTS
from ferrule.model.holding import Holding, Tensors
from ferrule.model.layer import Weights
from ferrule.model.packing import Matrices, Numbers, Packing, matrix_bytes, packing_of

PROGRAM = Holding(program=True, number_bytes=2, whole_experts=False, inputs_first=False)
MODULES = Holding(program=False, number_bytes=2, whole_experts=False, inputs_first=False)
Q4_K = packing_of(LAYOUTS["Q4_K"])


@pytest.mark.parametrize(
    ("packing", "columns", "bits"),
    [
        (Packing(4, 32, 2), 4096, 4.5),
        (Packing(8, 0, 4), 4096, 8 + 32 / 4096),  # a scale for each row
        (Q4_K, 4096, 4.625),  # bytes of 8 scales and 8 offsets, and two float16, for 256
        (Q4_K, 4096 + 128, 6.0),  # where a cut goes through blocks of 256: float32
        (packing_of(LAYOUTS["Q6_K"]), 4096, 6.5625),
        (Packing(4, 48, 2), 96, 5.0),  # groups of 48 become groups of 16
        (Packing(4, 24, 2), 96, 16.0),  # cannot be multiplied by: plain numbers
        (None, 4096, 16.0),
        (
            Packing(4, 128, 2, 1, ordered=True),
            4096,
            4 + 24 / 128 + 32 / 16,
        ),  # and the place of each column, for 16 rows
    ],
)
def test_bits_of_a_number(packing: Packing | None, columns: int, bits: float) -> None:
    assert matrix_bytes(16, columns, packing, 2) == 16 * columns * bits / 8
    assert matrix_bytes(1, columns, packing, 2) == matrix_bytes(16, columns, packing, 2)  # rows are filled up


def test_gate_and_up_of_an_expert_are_one_matrix() -> None:
    found = Weights()
    for name in ("gate_proj", "up_proj"):
        for expert in range(3):
            key = f"model.layers.0.mlp.experts.{expert}.{name}.weight"
            found += Weights(pieces=PROGRAM.pieces(key, Tensors((24, 64)), "routed", cut=True))
    assert found.pieces == {Matrices(48, 64, None, 2, "rows", 3.0)}
    assert found.in_engine.held(0.5) == 3 * 32 * 64 * 2  # 24 rows, filled up


def test_inputs_of_what_ends_in_a_sum_are_shared_out() -> None:
    (held,) = PROGRAM.pieces("model.layers.0.mlp.down_proj.weight", Tensors((64, 96), Q4_K), "dense", cut=True)
    assert held == Matrices(64, 96, Q4_K, 2, "columns")
    assert held.bytes(0.5) == matrix_bytes(64, 48, Q4_K, 2)


def test_vectors_are_float32_in_programs() -> None:
    told = Tensors((7,))
    assert PROGRAM.pieces("model.layers.0.input_layernorm.weight", told, "norm", cut=False) == {Numbers(4, False, 7)}
    assert MODULES.pieces("model.layers.0.input_layernorm.weight", told, "norm", cut=False) == {Numbers(2, False, 7)}
    assert PROGRAM.pieces("model.layers.0.self_attn.k_scale", Tensors(()), "attention", cut=True) == {
        Numbers(4, True, 1)
    }


def test_modules_hold_linear_layers_and_experts_packed() -> None:
    packed = Tensors((64, 64), Packing(4, 32, 2))
    (linear,) = MODULES.pieces("model.layers.0.mlp.up_proj.weight", packed, "dense", cut=True)
    assert linear == Matrices(64, 64, packed.packing, 2, "rows")
    (expert,) = MODULES.pieces("model.layers.0.mlp.experts.0.down_proj.weight", packed, "routed", cut=True)
    assert expert == Matrices(64, 64, packed.packing, 2, "columns")
    (table,) = MODULES.pieces("model.embed_tokens.weight", packed, "embedding", cut=True)
    assert table == Numbers(2, True, 64 * 64)


def test_what_is_not_known_counts_as_stored() -> None:
    known, unknown = Weights(10, 20, 0, frozenset({Numbers(4, True, 10)})), Weights(10, 20, 0, None)
    assert (known.in_engine.bytes, known.in_engine.held(0.5)) == (40, 20)
    assert ((known + unknown).in_engine.bytes, (known + unknown).in_engine.held(0.5)) == (40, 20)
    assert (known + unknown).in_engine.bytes == (known + unknown).bytes

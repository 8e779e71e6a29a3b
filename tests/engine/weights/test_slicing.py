from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ferrule.engine.weights import slicing
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import PlanError
from ferrule.model import divide, split_heads

PARTS = st.integers(1, 8)


def take(tensor: torch.Tensor, cut: Slicing) -> torch.Tensor:
    pieces = [tensor.narrow(cut.dim, a, b - a) for a, b in cut.ranges]
    if cut.pad:
        pieces.append(tensor.new_zeros(cut.shape(tensor.shape)).narrow(cut.dim, 0, cut.pad))
    part = torch.cat(pieces, dim=cut.dim)
    assert tuple(part.shape) == cut.shape(tensor.shape)
    return part


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel()).view(shape)


@given(PARTS, st.integers(1, 5), st.integers(0, 2))
def test_shares_concatenated_are_the_whole(parts: int, each: int, dim: int) -> None:
    shape = [3, 4, 2]
    shape[dim] = parts * each
    whole = numbered(*shape)
    shares = [take(whole, slicing.columns(shape[dim], dim, held)) for held in divide(shape[dim], [1.0] * parts)]
    assert torch.equal(torch.cat(shares, dim=dim), whole)


@given(PARTS, st.integers(1, 5), st.integers(1, 4))
def test_packed_shares_hold_the_same_part_of_every_piece(parts: int, each: int, pieces: int) -> None:
    whole = numbered(pieces * parts * each, 2)
    held = divide(parts * each, [1.0] * parts)
    cuts = [slicing.packed(whole.shape[0], 0, one, "width", pieces) for one in held]
    by_piece = [take(whole, cut).chunk(pieces) for cut in cuts]
    rebuilt = torch.cat([torch.cat([chunks[piece] for chunks in by_piece]) for piece in range(pieces)])
    assert torch.equal(rebuilt, whole)


@given(st.integers(1, 6), st.integers(1, 6), PARTS, st.integers(1, 3))
def test_fused_qkv_shares_hold_whole_heads_of_query_key_and_value(
    groups: int, key_value: int, parts: int, width: int
) -> None:
    query = groups * key_value
    try:
        splits = split_heads(query, key_value, [1.0] * parts)
    except PlanError:
        return
    whole = numbered((query + 2 * key_value) * width, 2)
    q, k, v = whole.split([query * width, key_value * width, key_value * width])
    found_q, found_k, found_v = [], {}, {}
    for split in splits:
        share = take(whole, slicing.fused_qkv(whole.shape[0], 0, query, key_value, split, "qkv"))
        sizes = [split.query_heads * width, split.key_value_heads * width, split.key_value_heads * width]
        own_q, own_k, own_v = share.split(sizes)
        found_q.append(own_q)
        for place, head in enumerate(range(*split.key_value)):
            found_k[head] = own_k[place * width : (place + 1) * width]
            found_v[head] = own_v[place * width : (place + 1) * width]
    assert torch.equal(torch.cat(found_q), q)
    assert torch.equal(torch.cat([found_k[head] for head in sorted(found_k)]), k)
    assert torch.equal(torch.cat([found_v[head] for head in sorted(found_v)]), v)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (slicing.packed, (9, 0, (0, 2), "gate_up"), "gate_up 9 is said to hold 2 tensors"),
        (slicing.heads, (10, 0, 4, (0, 1), "q_proj"), "q_proj has 10 rows, which do not divide by 4 heads"),
    ],
)
def test_what_does_not_divide_is_named(function: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        function(*arguments)

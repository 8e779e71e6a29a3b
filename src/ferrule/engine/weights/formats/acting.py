"""Columns in another order than their groups (GPTQ's act-order): brought into packed groups of one size."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.weights.formats.grouped import split_groups
from ferrule.engine.weights.groups import GroupedMatrix
from ferrule.errors import ModelError
from ferrule.model import Range
from ferrule.model.packing import LEAST_GROUP, GroupLayout, Packing, packing_of


def owned_packing(layout: GroupLayout, owners: NDArray[Any]) -> Packing | None:
    """Packing of a matrix whose columns are of groups ``owners``."""
    packing = packing_of(layout)
    return replace(packing, ordered=True) if packing and not in_order(owners, layout.group) else packing


def by_owner(
    layout: GroupLayout,
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    offsets: NDArray[np.float32] | None,
    owners: NDArray[Any],
    columns: tuple[Range, ...],
    name: str,
) -> GroupedMatrix:
    """``columns`` of a matrix, whose ``codes`` (rows, columns) are those columns alone, while ``scales`` and
    ``offsets`` (rows, groups) are of all groups. ``owners``: the group of each column of the whole matrix, as tensor
    ``name`` tells; where it is as without act-order, columns stay in their order.

    Otherwise columns are sorted by their groups, and each group is filled up with -1 to whole packed groups of a
    multiple of 16, so that each has one scale also where a rank's columns are any of the group's. Raises `ModelError`
    where a column's group is not there.
    """
    owners = owners.astype(np.int64)
    count = scales.shape[1]
    if owners.size and (owners.min() < 0 or owners.max() >= count):
        raise ModelError(
            f"{name} names groups from {owners.min()} to {owners.max()}, but there are {count}; download it again"
        )
    if in_order(owners, layout.group):
        if offsets is not None:
            offsets, _ = split_groups(offsets, layout.group, columns)
        scales, size = split_groups(scales, layout.group, columns)
        return GroupedMatrix(replace(layout, group=size), codes, scales, offsets)
    chosen, order, size = pack_order(np.concatenate([owners[start:stop] for start, stop in columns]))
    return GroupedMatrix(
        replace(layout, group=size),
        codes[:, order],  # -1 takes any code: it counts as zero
        scales[:, chosen],
        None if offsets is None else offsets[:, chosen],
        order,
    )


def in_order(owners: NDArray[Any], group: int) -> bool:
    """Whether columns of groups ``owners`` are as without act-order."""
    return bool((owners == np.arange(owners.size) // group).all())


def pack_order(owners: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """For columns of groups ``owners``: the group of each packed one, which column stands in each place (-1: none), and
    how many places a packed group has."""
    found, counts = np.unique(owners, return_counts=True)
    common = gcd(*counts.tolist())
    size = common if common and common % LEAST_GROUP == 0 else LEAST_GROUP
    packed = -(-counts // size)
    order = np.full(int(packed.sum()) * size, -1, np.int32)
    shifts = np.repeat((np.cumsum(packed) - packed) * size - (np.cumsum(counts) - counts), counts)
    order[shifts + np.arange(owners.size)] = np.argsort(owners, kind="stable")
    return np.repeat(found, packed), order, size

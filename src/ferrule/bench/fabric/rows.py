"""The result as rows, and rows as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import NotRequired, TypedDict

import numpy as np

from ferrule.bench.fabric.operations import bus_gb_s
from ferrule.bench.fabric.sweep import Cell, Contestant


class Row(TypedDict):
    """Result of one contestant in one cell. Times in microseconds, as rank 0 saw them.

    ``bytes``: the whole array on one rank (0 for a barrier); ``rails``: rails per peer; ``bus_gb_s``: by the median.
    ``turns_us``: the median of each turn, None where it sat out; not written to files.
    """

    op: str
    bytes: int
    dtype: str
    transport: str
    ranks: int
    rails: int
    impl: str
    min_us: float
    median_us: float
    p99_us: float
    bus_gb_s: float
    turns_us: NotRequired[list[float | None]]


_LIMITS = {"memory": ("memcpy", 1), "tcp-both": ("exchange", 2), "torch": ("nothing", 2)}
"""By transport: the operation that a limit is of, and between how many ranks."""


def make_row(cell: Cell, contestant: Contestant, turns: Sequence[Sequence[float]], rails: int = 1) -> Row:
    """``turns``: of each turn its samples in microseconds; at least one has some. ``rails``: how many there are
    indeed."""
    samples = [sample for turn in turns for sample in turn]
    op, ranks = cell.op, cell.ranks
    if contestant.impl == "raw":
        op, ranks = _LIMITS.get(contestant.transport, ("send_recv", 2))
    median = float(np.median(samples))
    return {
        "op": op,
        "bytes": cell.bytes,
        "dtype": cell.dtype,
        "transport": contestant.transport,
        "ranks": ranks,
        "rails": rails,
        "impl": contestant.impl,
        "min_us": round(min(samples), 3),
        "median_us": round(median, 3),
        "p99_us": round(float(np.percentile(samples, 99)), 3),
        "bus_gb_s": float(f"{bus_gb_s(op, cell.bytes, ranks, median):.4g}"),
        "turns_us": [round(float(np.median(turn)), 3) if turn else None for turn in turns],
    }


def in_pairs(row: Row, reference: Row, compare: Callable[[float, float], float]) -> float:
    """The median over all turns that both played of ``compare``, given the medians of that turn; of their medians
    altogether where they shared none. Turns lie close together, so that a machine that is slow for a while hits both.
    """
    pairs = zip(row.get("turns_us", []), reference.get("turns_us", []), strict=False)
    both = [compare(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    return float(np.median(both)) if both else compare(row["median_us"], reference["median_us"])


def added(row: Row, other: Row) -> Row:
    """As if each call of ``row`` were followed by one of ``other``."""
    turns = zip(row.get("turns_us", []), other.get("turns_us", []), strict=False)
    return {
        **row,
        "min_us": row["min_us"] + other["min_us"],
        "median_us": row["median_us"] + other["median_us"],
        "p99_us": row["p99_us"] + other["p99_us"],
        "turns_us": [None if one is None or two is None else one + two for one, two in turns],
    }


def find_row(rows: Sequence[Row], **wanted: object) -> Row | None:
    """The first row whose columns have the ``wanted`` values."""
    for row in rows:
        if all(row[column] == value for column, value in wanted.items()):  # type: ignore[literal-required]
            return row
    return None


COLUMNS = tuple(column for column in Row.__annotations__ if column != "turns_us")
"""Of files."""


def to_json(rows: Sequence[Row]) -> str:
    written = [{column: value for column, value in row.items() if column in COLUMNS} for row in rows]
    return json.dumps(written, indent=1) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

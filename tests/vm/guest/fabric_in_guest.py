"""Runs inside a guest: one rank of a group of two over the cables' RDMA device. ``python fabric_in_guest.py CASE``

Prints one line of JSON. `stream` says in /tmp/progress how far it is, and ends when rank 0's host has /tmp/enough.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, "/tests/fabric")

import numpy as np
from exact_calls import CALLS, DTYPES, OPS, all_reduce, exact_inputs

import ferrule.fabric as fabric
from ferrule.errors import FerruleError
from ferrule.fabric import Group

MOST_BYTES = 16 << 20
STREAM_ELEMENTS = 1 << 16
PROGRESS = Path("/tmp/progress")
ENOUGH = Path("/tmp/enough")


def sizes(group: Group) -> dict[str, Any]:
    """Reductions of 8 B to 16 MiB, the types and operations in turns, and all other collectives in two sizes."""
    number = 0
    size = 8
    while size <= MOST_BYTES:
        number += 1
        dtype, op = DTYPES[number % len(DTYPES)], list(OPS)[number % len(OPS)]
        all_reduce(group, exact_inputs(number, dtype, size // np.dtype(dtype).itemsize, group.size), 0, op)
        size *= 2
    for size in (33, 5000):
        for dtype in DTYPES:
            for call in CALLS:
                number += 1
                inputs = exact_inputs(number, dtype, size, group.size)
                call(group, inputs, number % group.size, list(OPS)[number % len(OPS)])
    return {"calls": number}


def stream(group: Group) -> dict[str, Any]:
    """Reductions until there are enough or one fails; says what they added up to, and how long the last one took."""
    done = 0
    begin = time.monotonic()
    counts = np.arange(STREAM_ELEMENTS, dtype=np.int64)
    try:
        while True:
            begin = time.monotonic()
            x = counts * (group.rank + 1) + done
            x[-1] = group.rank == 0 and ENOUGH.exists()
            group.all_reduce(x)
            assert (x[:-1] == counts[:-1] * 3 + 2 * done).all(), f"all_reduce {done}: {x}"
            done += 1
            tell(done)
            if x[-1]:
                return {"done": done}
    except FerruleError as error:
        took = time.monotonic() - begin
        return {"done": done, "error": type(error).__name__, "text": str(error), "took": took}


def tell(done: int) -> None:
    new = PROGRESS.with_suffix(".new")
    new.write_text(str(done))
    new.replace(PROGRESS)


def main() -> None:
    case = {"sizes": sizes, "stream": stream}[sys.argv[1]]
    with fabric.init(strict=True) as group:
        Path("/tmp/rank").write_text(str(os.getpid()))
        info = group.describe()
        found = case(group)
        peer = info.peers[1 - group.rank]
        found |= {"transports": info.transports, "path": peer.path, "notes": [*info.notes, *peer.notes]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

"""Work of a group while faults hit it: random operations, the same on every rank, from one seed."""

from __future__ import annotations

import random

from exact_calls import CALLS, DTYPES, OPS, all_reduce, exact_inputs

from ferrule.fabric import Group


def batch(group: Group, seed: int, number: int, largest: int) -> None:
    """A few operations on arrays of up to ``largest`` elements. Raises `WrongResult`."""
    chooser = random.Random(f"{seed}/{number}")
    for _ in range(chooser.randint(1, 4)):
        sizes = [0, 1, 2, chooser.randint(3, 100), chooser.randint(100, 5000), chooser.randint(0, largest)]
        inputs = exact_inputs(chooser.randrange(1 << 32), chooser.choice(DTYPES), chooser.choice(sizes), group.size)
        call = chooser.choice([*CALLS, all_reduce, all_reduce])
        call(group, inputs, chooser.randrange(group.size), chooser.choice(list(OPS)))

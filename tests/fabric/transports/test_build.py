"""How long ranks that wait stay awake."""

from __future__ import annotations

import pytest

from ferrule.fabric.transports.build import awake


@pytest.mark.parametrize(
    ("asked", "crowded", "rationed", "spins", "yields"),
    [
        (None, False, False, True, True),
        (None, True, False, False, True),
        (None, False, True, False, False),  # of a core that is rationed, waiting takes what computing needs
        (0.0, False, False, False, False),
        (5.0, True, True, True, True),  # the user's word goes first
    ],
)
def test_ranks_stay_awake_where_that_takes_nothing_from_computing(
    asked: float | None, crowded: bool, rationed: bool, spins: bool, yields: bool
) -> None:
    spin_us, yield_us = awake(asked, crowded=crowded, rationed=rationed)
    assert (spin_us > 0, yield_us > 0) == (spins, yields)
    assert asked is None or spin_us == asked

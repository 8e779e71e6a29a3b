"""Hosts for which a user asks."""

import pytest

from ferrule.errors import ConfigError
from ferrule.launch.request import chosen_of, spread


@pytest.mark.parametrize(("ranks", "expected"), [(None, [1, 1, 1]), (4, [2, 1, 1]), (2, [1, 1]), (7, [3, 2, 2])])
def test_ranks_are_spread_evenly(ranks, expected):
    assert [entry.slots for entry in spread(["a", "b", "c"], ranks)] == expected


def test_only_hosts_that_are_up_are_chosen():
    assert [(entry.name, entry.slots) for entry in chosen_of(["a", "b"], None, "b:2", "the cluster")] == [("b", 2)]
    with pytest.raises(ConfigError, match="no host 'c' of the cluster is up, only a, b"):
        chosen_of(["a", "b"], None, "c", "the cluster")
    with pytest.raises(ConfigError, match="-n 0"):
        spread(["a"], 0)

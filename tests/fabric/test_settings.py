"""The environment of a rank, and what follows from its host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.config import DEFAULT_TIMEOUT, fabric_settings
from ferrule.errors import ConfigError
from ferrule.fabric.hosts import RankHost, oversubscribed, this_host

GOOD = {
    "FERRULE_RANK": "1",
    "FERRULE_WORLD_SIZE": "2",
    "FERRULE_ADDRESS": "10.0.0.1:5000",
    "FERRULE_KEY": "ab" * 32,
}


def test_nothing_set_is_a_group_of_one_unless_strict() -> None:
    assert fabric_settings({}).world_size == 1
    # A key or an address in the profile asks for nothing yet.
    assert fabric_settings({"FERRULE_KEY": "ab" * 32, "FERRULE_TIMEOUT": "500ms"}).timeout == 0.5
    with pytest.raises(ConfigError, match="FERRULE_RANK"):
        fabric_settings({}, strict=True)


def test_complete_environment() -> None:
    settings = fabric_settings(GOOD | {"FERRULE_TRANSPORT": "tcp", "FERRULE_SPIN_US": "3.5"}, strict=True)
    assert (settings.rank, settings.world_size, settings.address) == (1, 2, ("10.0.0.1", 5000))
    assert (settings.transport, settings.spin_us, settings.timeout) == ("tcp", 3.5, DEFAULT_TIMEOUT)
    assert fabric_settings(GOOD | {"FERRULE_ADDRESS": "[::1]:80"}).address == ("::1", 80)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FERRULE_RANK", "2"),
        ("FERRULE_RANK", "-1"),
        ("FERRULE_RANK", "one"),
        ("FERRULE_WORLD_SIZE", "0"),
        ("FERRULE_WORLD_SIZE", "2.5"),
        ("FERRULE_ADDRESS", "10.0.0.1"),
        ("FERRULE_ADDRESS", "10.0.0.1:99999"),
        ("FERRULE_KEY", "not hexadecimal"),
        ("FERRULE_KEY", "abcd"),
        ("FERRULE_TRANSPORT", "carrier-pigeon"),
        ("FERRULE_TIMEOUT", "soon"),
        ("FERRULE_TIMEOUT", "0"),
        ("FERRULE_SPIN_US", "-1"),
        ("FERRULE_LISTEN_FD", "3"),
    ],
)
def test_bad_values_name_their_variable(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        fabric_settings(GOOD | {name: value})


def test_host_survives_its_way_over_the_wire() -> None:
    host = this_host("auto", "127.0.0.1", 80)
    assert RankHost.from_json({**host.to_json(), "cpus": list(host.cpus)}) == host
    assert host.memory_id == this_host("tcp").memory_id


@pytest.mark.parametrize(
    ("sets", "answer"),
    [
        ([[0, 1], [0, 1]], False),
        ([[0], [1]], False),
        ([[0], [0]], True),
        ([[0, 1], [0, 1], [0, 1]], True),
        ([[0], [0], [0, 1, 2, 3]], True),
        ([[0], [1], [0, 1, 2]], False),
    ],
)
def test_oversubscribed(sets: list[list[int]], answer: bool) -> None:
    assert oversubscribed(sets) is answer


@given(st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=8))
def test_more_ranks_than_cpus_is_always_oversubscribed(sets: list[set[int]]) -> None:
    cpus = [sorted(cpus) for cpus in sets]
    if len(sets) > len(set().union(*sets)):
        assert oversubscribed(cpus)
    assert not oversubscribed([[number] for number in range(len(sets))])

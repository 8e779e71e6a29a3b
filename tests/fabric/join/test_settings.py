"""The environment of a rank, and what follows from its host."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.config import DEFAULT_TIMEOUT, fabric_settings
from ferrule.errors import ConfigError
from ferrule.fabric.join.addresses import Interface
from ferrule.fabric.join.hosts import RankHost, oversubscribed, this_host

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
    assert (settings.rank, settings.world_size, settings.addresses) == (1, 2, (("10.0.0.1", 5000),))
    assert (settings.transport, settings.spin_us, settings.timeout) == ("tcp", 3.5, DEFAULT_TIMEOUT)
    assert fabric_settings(GOOD | {"FERRULE_ADDRESS": "[::1]:80, a:1"}).addresses == (("::1", 80), ("a", 1))


def test_settings_of_rails_and_neighbours() -> None:
    environment = {
        "FERRULE_LISTEN": ":7700",
        "FERRULE_INTERFACES": "eth0, ^wlan0",
        "FERRULE_RAILS": "2",
        "FERRULE_HEARTBEAT": "300ms",
        "FERRULE_CALIBRATE": "0",
    }
    settings = fabric_settings(GOOD | environment)
    assert settings.listen == ("", 7700)
    assert fabric_settings(GOOD | {"FERRULE_LISTEN": "7700"}).listen == ("", 7700)
    assert fabric_settings(GOOD | {"FERRULE_LISTEN": "10.0.0.2:7700"}).listen == ("10.0.0.2", 7700)
    assert settings.interfaces == ("eth0", "^wlan0")
    assert (settings.rails, settings.heartbeat, settings.calibrate) == (2, 0.3, "never")
    assert (fabric_settings(GOOD).calibrate, fabric_settings(GOOD).algorithm) == ("cached", "auto")
    assert fabric_settings(GOOD).rails is None
    assert fabric_settings(GOOD | {"FERRULE_RAILS": "auto"}).rails is None
    chosen = fabric_settings(GOOD | {"FERRULE_CALIBRATE": "fresh", "FERRULE_ALGORITHM": "ring"})
    assert (chosen.calibrate, chosen.algorithm) == ("fresh", "ring")
    assert fabric_settings(GOOD | {"FERRULE_HEARTBEAT": "0"}).heartbeat == 0


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
        ("FERRULE_LISTEN", "there"),
        ("FERRULE_LISTEN", "0"),
        ("FERRULE_RAILS", "0"),
        ("FERRULE_HEARTBEAT", "1us"),
        ("FERRULE_HEARTBEAT", "often"),
        ("FERRULE_CALIBRATE", "maybe"),
        ("FERRULE_ALGORITHM", "quantum"),
    ],
)
def test_bad_values_name_their_variable(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        fabric_settings(GOOD | {name: value})


def test_host_survives_its_way_over_the_wire() -> None:
    host = replace(this_host("auto"), address="127.0.0.1", port=80, interfaces=(Interface("eth0", "10.0.0.1", 24),))
    assert msgspec.json.decode(msgspec.json.encode(host), type=RankHost) == host
    assert host.memory_id == this_host("tcp").memory_id


def test_host_id_makes_hosts_of_one_machine_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = this_host("auto")
    monkeypatch.setenv("FERRULE_HOST_ID", "left")
    left, again = this_host("auto"), this_host("tcp")
    monkeypatch.setenv("FERRULE_HOST_ID", "right")
    right = this_host("auto")
    assert (left.host, right.host) == ("left", "right")
    assert left.memory_id == again.memory_id
    assert len({machine.memory_id, left.memory_id, right.memory_id}) == 3
    assert machine.kernel == left.kernel == right.kernel != ""
    monkeypatch.setenv("FERRULE_HOST_ID", "two\nlines")
    with pytest.raises(ConfigError, match="FERRULE_HOST_ID"):
        this_host("auto")


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

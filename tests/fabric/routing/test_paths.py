"""Choice of the interfaces that join two hosts: subnets, tunnels and bridges, several cables, link-local guesses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import ConfigError
from ferrule.fabric.join.addresses import Interface, own_interfaces, pairings, usable
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.paths import Rail, candidates, keep


def face(name: str, address: str, prefix: int = 24, port: int = 0) -> Interface:
    return Interface(name, address, prefix, port=port)


def host(memory_id: str, *faces: Interface, address: str = "") -> RankHost:
    return RankHost(memory_id, memory_id, 1, (0,), "auto", address, 9, faces)


def names(pairs: tuple[tuple[Interface, Interface], ...]) -> list[tuple[str, str]]:
    return [(one.name, other.name) for one, other in pairs]


def test_what_leads_nowhere_else_is_left_out_unless_it_is_named() -> None:
    found = [
        face("lo", "127.0.0.1", 8),
        face("docker0", "172.17.0.1", 16),
        face("br-0123456789ab", "172.18.0.1", 16),
        face("br-lan", "192.168.1.1"),
        face("veth12ab", "169.254.3.4", 16),
        face("tailscale0", "100.64.0.1", 32),
        face("frl-strix-2", "10.99.0.1"),
        face("eth10", "10.0.10.1"),
        face("eth2", "10.0.2.1"),
        face("thunderbolt0", "10.0.0.1"),
    ]
    assert [one.name for one in usable(found)] == ["br-lan", "eth2", "eth10", "thunderbolt0"]
    assert [one.name for one in usable(found, ["^eth2", "^thunderbolt0"])] == ["br-lan", "eth10"]
    assert [one.name for one in usable(found, ["tailscale0", "eth2"])] == ["eth2", "tailscale0"]
    with pytest.raises(ConfigError, match=r"FERRULE_INTERFACES names eth3.*thunderbolt0"):
        usable(found, ["eth3"])


def test_own_interfaces_are_read() -> None:
    for one in own_interfaces():
        assert 0 < one.prefix <= one.ip.max_prefixlen
        assert one.mtu > 0


def test_interfaces_on_one_subnet_belong_together() -> None:
    one = [face("eth0", "10.0.0.1"), face("tb0", "10.1.0.1", 30), face("eth9", "10.9.0.1")]
    other = [face("en0", "10.0.0.2"), face("en1", "10.1.0.2", 30), face("en2", "10.8.0.1")]
    assert names(pairings(one, other)) == [("eth0", "en0"), ("tb0", "en1")]


def test_two_interfaces_on_one_subnet_pair_up_in_order() -> None:
    one = [face("eth0", "10.0.0.1"), face("eth1", "10.0.0.3")]
    other = [face("eth0", "10.0.0.2"), face("eth1", "10.0.0.4"), face("eth2", "10.0.0.5")]
    assert names(pairings(one, other)) == [("eth0", "eth0"), ("eth1", "eth1")]


def test_both_ends_must_agree_on_the_subnet() -> None:
    assert pairings([face("a", "10.0.0.1", 24)], [face("b", "10.0.1.1", 16)]) == ()


def test_an_interface_counts_once_whatever_addresses_it_has() -> None:
    one = [face("eth0", "10.0.0.1"), face("eth0", "fd00::1", 64), face("eth0", "fe80::1", 64)]
    other = [face("eth0", "10.0.0.2"), face("eth0", "fd00::2", 64), face("eth0", "fe80::2", 64)]
    assert names(pairings(one, other)) == [("eth0", "eth0")]
    assert pairings(one[1:], other[1:])[0][1].address == "fd00::2"


def test_link_local_addresses_are_tried_both_ways_around() -> None:
    one = [face("tb0", "fe80::1", 64), face("tb1", "fe80::2", 64), face("eth0", "10.0.0.1")]
    other = [face("tb0", "fe80::3", 64), face("eth0", "10.0.0.2")]
    assert names(pairings(one, other)) == [("eth0", "eth0"), ("tb0", "tb0"), ("tb1", "tb0")]


def test_the_same_address_on_both_hosts_is_no_way() -> None:
    """Point-to-point cables of different pairs often have the same two addresses."""
    assert pairings([face("tb0", "192.168.0.1", 30)], [face("tb1", "192.168.0.1", 30)]) == ()


def test_both_ranks_number_the_rails_alike() -> None:
    low = host("a", face("eth0", "10.0.0.1", port=1), face("eth1", "10.1.0.1", port=2), address="10.0.0.1")
    high = host("b", face("en5", "10.1.0.2", port=3), face("en7", "10.0.0.2", port=4), address="192.0.2.1")
    up, down = candidates(0, low, 1, high, 2), candidates(1, high, 0, low, 2)
    assert [rail.number for rail in up] == [rail.number for rail in down] == list(range(6))
    assert [(rail.interface, rail.other_interface) for rail in up] == [
        (rail.other_interface, rail.interface) for rail in down
    ]
    assert up[0] == Rail(0, ("10.0.0.2", 4), "10.0.0.1", "eth0", "en7", 0)
    assert up[2] == Rail(2, ("192.0.2.1", 9), base=2)
    assert up[3] == replace(up[0], number=3)


def test_ranks_of_one_host_meet_where_they_met() -> None:
    one, other = (host("a", face("eth0", f"10.0.0.{number}"), address="127.0.0.1") for number in (1, 1))
    assert candidates(1, one, 0, other) == (Rail(0, ("127.0.0.1", 9)),)


def test_each_interface_is_used_once_and_the_first_meeting_point_only_alone() -> None:
    guesses = [Rail(0, ("", 0), "", "tb0", "tb0", 0), Rail(1, ("", 0), "", "tb0", "tb1", 1)]
    guesses += [Rail(2, ("", 0), "", "tb1", "tb1", 2), Rail(3, ("", 0), base=3)]
    assert [rail.number for rail in keep(guesses, {0, 1, 2, 3})] == [0, 2]
    assert [rail.number for rail in keep(guesses, {1, 2, 3})] == [1]
    assert [rail.number for rail in keep(guesses, {3})] == [3]
    assert keep(guesses, ()) == ()
    copies = [replace(rail, number=rail.number + 4) for rail in guesses]
    assert [rail.number for rail in keep([*guesses, *copies], {0, 4, 6})] == [0, 4, 6]


ADDRESSES = st.builds(
    face,
    st.sampled_from(["eth0", "eth1", "eth2", "tb0"]),
    st.sampled_from(
        ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2", "169.254.1.1", "169.254.7.7", "fe80::1", "fd00::1"]
    ),
    st.sampled_from([16, 24, 30]),
)


@given(st.lists(ADDRESSES, max_size=6), st.lists(ADDRESSES, max_size=6))
def test_pairs_are_possible_and_interfaces_of_subnets_used_once(one: list[Interface], other: list[Interface]) -> None:
    pairs = pairings(one, other)
    sure = [pair for pair in pairs if not pair[0].ip.is_link_local]
    assert all(mine.shares_subnet(theirs) for mine, theirs in sure)
    assert all(mine.address != theirs.address for mine, theirs in pairs)
    for end in (0, 1):
        used = [pair[end].name for pair in sure]
        assert len(set(used)) == len(used)
        assert not set(used) & {pair[end].name for pair in pairs if pair not in sure}

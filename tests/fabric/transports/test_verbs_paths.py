"""Choice of RDMA ports, and of the pairs of two hosts' ports that are joined: on ports as real machines have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import json

from ferrule.config import VerbsSettings, verbs_settings
from ferrule.errors import ConfigError
from ferrule.fabric.transports.verbs.pairs import NextPath, Ports
from ferrule.fabric.transports.verbs.paths import Gid, Port, QueuePairType, VerbsPath, paths
from ferrule.fabric.transports.verbs.ports import Address, choose_ports

BOTH: Sequence[QueuePairType] = ("RC", "UC")


def mapped(*address: int) -> bytes:
    return bytes(10) + b"\xff\xff" + bytes(address)


def listed(device: str, **fields: Any) -> dict[str, Any]:
    """Description of a port as the native module gives it."""
    port = {
        "device": device,
        "problem": "",
        "port": 1,
        "active": True,
        "infiniband": False,
        "iwarp": False,
        "mtu": 4096,
        "lid": 0,
        "vendor": 0x15B3,
        "max_qp": 1000,
        "max_mr": 1000,
        "max_qp_wr": 1000,
        "gids": {0: bytes.fromhex("fe80000000000000" + "0000000000000001"), 3: mapped(10, 0, 0, 1)},
    }
    assert fields.keys() <= port.keys()
    return port | fields


def roce(device: str, *gids: Gid) -> Port:
    return Port(device, 1, "roce", gids=gids)


def first(low: Port, high: Port, types: Sequence[QueuePairType] = BOTH, met: tuple[str, str] = ("", "")) -> VerbsPath:
    return paths([low], [high], types, met)[0]


@pytest.mark.parametrize(
    ("devices", "allowed", "refused"),
    [("", "abc", ""), ("a,b", "ab", "c"), ("a , b", "ab", "c"), ("^a,b", "c", "ab"), ("^a", "bc", "a")],
)
def test_devices_are_chosen_by_exact_name(devices: str, allowed: str, refused: str) -> None:
    settings = verbs_settings({"FERRULE_VERBS_DEVICES": devices})
    assert all(settings.allows(name) for name in allowed)
    assert not any(settings.allows(name) for name in refused)


def test_prefix_of_a_name_is_another_name() -> None:
    assert not verbs_settings({"FERRULE_VERBS_DEVICES": "mlx5_1"}).allows("mlx5_10")


@pytest.mark.parametrize("variable", ["FERRULE_VERBS_DEVICES=a,,b", "FERRULE_VERBS_DEVICES=^", "FERRULE_VERBS_TYPE=UD"])
def test_wrong_settings_are_named(variable: str) -> None:
    name, _, value = variable.partition("=")
    with pytest.raises(ConfigError, match=name):
        verbs_settings({name: value})


def test_type_is_read_in_any_case() -> None:
    assert [verbs_settings({"FERRULE_VERBS_TYPE": text}).type for text in ("", "auto", "rc", "UC")] == [
        "auto",
        "auto",
        "RC",
        "UC",
    ]


def test_ports_that_cannot_be_used_are_left_out_and_the_reason_is_kept() -> None:
    ports = [listed("up"), listed("down", active=False), {"device": "ill", "problem": "it refuses"}, listed("other")]
    found = choose_ports(ports, VerbsSettings(("up", "down", "ill", "gone")), (), software=True)
    assert [port.device for port in found.ports] == ["up"]
    for words in ("down has no link", "ill: it refuses", "leaves other out", "gone is named"):
        assert words in found.reason


def test_emulated_devices_wait_to_be_asked_for() -> None:
    ports = [listed("rxe0", vendor=0xFFFFFF)]
    assert "slower than TCP" in choose_ports(ports, VerbsSettings(), (), software=False).reason
    assert choose_ports(ports, VerbsSettings(), (), software=True).ports
    assert choose_ports(ports, VerbsSettings(("rxe0",)), (), software=False).ports


def test_gids_become_addresses_with_their_subnets() -> None:
    addresses = [Address("10.0.0.1", 24, b""), Address("fe80::1", 64, b"")]
    (port,) = choose_ports([listed("mlx5_0")], VerbsSettings(), addresses, software=False).ports
    assert [(gid.index, gid.address, gid.prefix) for gid in port.gids] == [(0, "fe80::1", 64), (3, "10.0.0.1", 24)]


def test_iwarp_addresses_are_those_of_its_interface() -> None:
    mac = bytes.fromhex("725ec2450335")
    addresses = [Address("10.0.1.1", 24, mac), Address("fe80::2", 64, mac), Address("10.9.9.9", 8, b"\1" * 6)]
    fields = listed("siw0", iwarp=True, gids={0: mac + bytes(10)})
    (port,) = choose_ports([fields], VerbsSettings(), addresses, software=False).ports
    assert (port.wire, [gid.address for gid in port.gids]) == ("iwarp", ["10.0.1.1"])


def test_gid_is_found_by_its_subnet_wherever_it_stands() -> None:
    low = roce("a", Gid(0, "fe80::1", 64, 2), Gid(5, "192.168.7.1", 24, 2), Gid(9, "10.0.0.1", 24, 2))
    high = roce("b", Gid(0, "fe80::2", 64, 2), Gid(1, "10.0.0.2", 24, 2))
    path = first(low, high)
    assert (path.ends[0].gid_index, path.ends[1].gid_index, path.type) == (9, 1, "RC")


def test_the_addresses_by_which_ranks_met_come_first() -> None:
    low = roce("a", Gid(1, "10.0.0.1", 24, 2), Gid(2, "10.1.0.1", 16, 2))
    high = roce("b", Gid(1, "10.0.0.2", 24, 2), Gid(2, "10.2.0.1", 16, 2))
    assert first(low, high).ends[0].label == "10.0.0.1"
    assert first(low, high, met=("10.1.0.1", "10.2.0.1")).ends[0].label == "10.1.0.1"


def test_roce_v2_is_preferred_and_versions_are_not_mixed() -> None:
    low = roce("a", Gid(0, "10.0.0.1", 24, 1), Gid(1, "10.0.0.1", 24, 2))
    assert first(low, roce("b", Gid(0, "10.0.0.2", 24, 1), Gid(1, "10.0.0.2", 24, 2))).ends[1].gid_index == 1
    assert first(low, roce("b", Gid(4, "10.0.0.2", 24, 1))).ends[0].gid_index == 0


def test_one_sided_subnets_and_other_families_do_not_match() -> None:
    low = roce("a", Gid(0, "10.0.0.1", 24, 2), Gid(1, "fd00::1", 64, 2))
    assert not paths([low], [roce("b", Gid(0, "10.0.1.1", 8, 2))], BOTH)
    assert not paths([low], [roce("b", Gid(0, "10.0.1.1", 0, 2))], BOTH)
    assert not paths([low], [Port("b", 1, "iwarp", gids=(Gid(0, "10.0.0.2", 24),))], BOTH)


def test_link_local_addresses_are_the_last_to_be_tried() -> None:
    low = [roce("a", Gid(0, "169.254.1.1", 16)), roce("b", Gid(0, "192.168.0.1", 30), Gid(1, "169.254.2.1", 16))]
    high = [roce("c", Gid(0, "169.254.1.2", 16)), roce("d", Gid(0, "192.168.0.2", 30))]
    found = [(path.ends[0].device, path.ends[1].device) for path in paths(low, high, ["UC"])]
    assert found == [("b", "d"), ("a", "c"), ("b", "c")]


def test_infiniband_needs_a_subnet_manager_and_the_same_subnet() -> None:
    def port(device: str, lid: int, subnet: str = "fe80000000000000") -> Port:
        return Port(device, 1, "infiniband", lid=lid, subnet=subnet)

    assert first(port("a", 1), port("b", 2)).ends[1].device == "b"
    assert not paths([port("a", 1)], [port("b", 0)], BOTH)
    assert not paths([port("a", 1)], [port("b", 2, "fe80000000000001")], BOTH)


def test_better_paths_come_before_better_types() -> None:
    low = [roce("a", Gid(0, "169.254.1.1", 16)), roce("b", Gid(0, "192.168.0.1", 30))]
    high = [roce("c", Gid(0, "169.254.1.2", 16)), roce("d", Gid(0, "192.168.0.2", 30))]
    found = [(path.ends[0].device, path.type) for path in paths(low, high, BOTH)]
    assert found == [("b", "RC"), ("b", "UC"), ("a", "RC"), ("a", "UC")]


def test_iwarp_has_no_unreliable_queue_pairs() -> None:
    low, high = (Port(name, 1, "iwarp", gids=(Gid(0, f"10.0.0.{name}", 24),)) for name in "12")
    assert [path.type for path in paths([low], [high], BOTH)] == ["RC"]
    assert first(low, high).ends[0].address == "10.0.0.1"


def test_what_ranks_tell_each_other_survives_the_way() -> None:
    port = roce("a", Gid(1, "10.0.0.1", 24, 2))
    ports = Ports((port,), ("RC",), "")
    assert json.decode(json.encode(ports), type=Ports) == ports
    path = first(port, roce("b", Gid(1, "10.0.0.2", 24, 2)))
    assert json.decode(json.encode(NextPath(path)), type=NextPath) == NextPath(path)

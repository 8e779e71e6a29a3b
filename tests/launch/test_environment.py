"""Environment of ranks, from recorded machines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest

from ferrule.errors import ConfigError
from ferrule.launch import environment as env
from ferrule.launch.facts import Face, HostFacts, RdmaFace, with_links
from ferrule.launch.hostfile import HostEntry
from ferrule.launch.job import Job, Site, find_addresses, version_skew, with_ports
from ferrule.links import Probe

TREES = Path(__file__).parents[1] / "links" / "trees"
KEY = "c0ffee"
PORTS = (7000, 7001, 7002, 7003)


@cache
def recorded(name: str) -> HostFacts:
    return with_links(HostFacts(name, name, 8), Probe.recorded(TREES / f"{name}.json").inventory())


def site(facts: HostFacts, address: str, ranks: tuple[int, ...], **entry: object) -> Site:
    ports = (*(PORTS if 0 in ranks else ()), *(8000 + rank for rank in ranks))
    return Site(HostEntry(facts.name, len(ranks), **entry), facts, address, ranks, ports)  # type: ignore[arg-type]


def macs(*numbers: int) -> Job:
    found = [recorded(f"mac-studio-{number}") for number in numbers]
    return Job(tuple(site(facts, f"192.168.1.{101 + n}", (n,)) for n, facts in enumerate(found)), KEY)


def two_strix(ranks: int = 1) -> Job:
    a, b = recorded("strix-halo-a"), recorded("strix-halo-b")
    return Job((site(a, "192.168.1.21", (0,)), site(b, "192.168.1.22", tuple(range(1, 1 + ranks)))), KEY)


def test_ferrule_and_torch() -> None:
    job = two_strix(ranks=2)
    assert env.ferrule_env(job, 0) == {
        "FERRULE_RANK": "0",
        "FERRULE_WORLD_SIZE": "3",
        "FERRULE_ADDRESS": "192.168.1.21:7000",
        "FERRULE_KEY": KEY,
    }
    # Rank 0 is tried over every cable, the quickest after the one that is known to work.
    over = "192.168.1.21:7000,10.77.0.1:7000,10.77.1.1:7000"
    assert env.ferrule_env(job, 2)["FERRULE_ADDRESS"] == over
    assert env.torch_env(job, 2) == {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "192.168.1.21",
        "MASTER_PORT": "7001",
    }
    # In a mesh of cables each host knows rank 0's by another address.
    first = replace(job.sites[0], address="10.77.0.1")
    far = replace(job.sites[1].facts, faces=tuple(one for one in job.sites[1].facts.faces if "10.77.1." in one.address))
    mesh = Job((first, replace(job.sites[1], facts=far)), KEY)
    assert env.torch_env(mesh, 1)["MASTER_ADDR"] == "10.77.1.1"
    assert env.mlx_env(mesh, 1)["NCCL_HOST_IP"] == "10.77.1.1"
    assert env.ferrule_env(mesh, 1)["FERRULE_ADDRESS"] == "10.77.1.1:7000,10.77.0.1:7000"
    # The USB4 cables are quicker than the network at 5 Gb/s.
    assert env.torch_defaults(job, job.sites[0]) == {
        "GLOO_SOCKET_IFNAME": "thunderbolt0",
        "TP_SOCKET_IFNAME": "thunderbolt0",
    }
    assert env.torch_defaults(job, job.sites[1])["OMP_NUM_THREADS"] == "4"
    assert KEY not in repr(job)


def test_nccl_takes_what_joins_the_hosts_by_exact_names() -> None:
    job = two_strix()
    assert env.nccl_defaults(job, job.sites[0]) == {
        "NCCL_SOCKET_IFNAME": "=thunderbolt0,thunderbolt1",
        "NCCL_IB_DISABLE": "1",
    }
    card = recorded("e810-roce")
    faces = tuple(replace(face, address="10.10.0.2") for face in card.faces if ":" not in face.address)
    soft = RdmaFace("rxe0", 1, ("enp65s0f0np0",), "Ethernet", software=True)
    infiniband = RdmaFace("mlx4_0", 2, (), "InfiniBand")
    other = replace(card, name="other", faces=faces, rdma=(soft, *card.rdma, infiniband))
    job = Job((site(card, "10.10.0.1", (0,)), site(other, "10.10.0.2", (1,))), KEY)
    assert env.nccl_defaults(job, job.sites[0]) == {
        "NCCL_SOCKET_IFNAME": "=enp65s0f0np0",
        "NCCL_IB_HCA": "=rocep65s0f0:1",
    }
    assert env.nccl_defaults(job, job.sites[1])["NCCL_IB_HCA"] == "=rocep65s0f0:1,mlx4_0:2"
    # Where one host has none, none may use it.
    job = Job((job.sites[0], replace(job.sites[1], facts=replace(other, rdma=(soft,)))), KEY)
    assert env.nccl_defaults(job, job.sites[0])["NCCL_IB_DISABLE"] == "1"
    assert env.nccl_of_one(card) == {"NCCL_SOCKET_IFNAME": "=enp65s0f0np0", "NCCL_IB_HCA": "=rocep65s0f0:1"}
    assert env.nccl_of_one(other)["NCCL_IB_HCA"] == "=rocep65s0f0:1,mlx4_0:2"
    assert env.nccl_of_one(recorded("wifi-only")) == {"NCCL_IB_DISABLE": "1"}


def test_mlx_ring_and_rdma_devices_follow_the_cables() -> None:
    job = macs(1, 2, 3)
    assert env.ring(job) == [["10.1.3.1:8000"], ["10.1.2.2:8001"], ["10.2.3.3:8002"]]
    assert env.rdma_devices(job) == [
        [None, "rdma_en3", "rdma_en4"],
        ["rdma_en3", None, "rdma_en4"],
        ["rdma_en3", "rdma_en4", None],
    ]
    assert env.mlx_env(job, 1) == {
        "MLX_RANK": "1",
        "MLX_WORLD_SIZE": "3",
        "NCCL_HOST_IP": "192.168.1.101",
        "NCCL_PORT": "7003",
        "MLX_JACCL_COORDINATOR": "192.168.1.101:7002",
    }
    assert set(env.mlx_files(job)) == {"MLX_HOSTFILE", "MLX_IBV_DEVICES"}
    # Mac 1 and 4 share a cable without RDMA: neither a mesh nor a ring.
    job = macs(1, 2, 3, 4)
    assert env.rdma_devices(job) is None
    assert "MLX_JACCL_COORDINATOR" not in env.mlx_env(job, 0)
    # Two cables between two hosts: two connections.
    assert env.ring(two_strix()) == [["10.77.0.1:8000", "10.77.1.1:8000"], ["10.77.0.2:8001", "10.77.1.2:8001"]]
    assert env.ring(two_strix(ranks=2)) == [["10.77.0.1:8000"], ["10.77.0.2:8001"], ["192.168.1.22:8002"]]


def test_what_a_hostfile_says_comes_first() -> None:
    job = macs(1, 2)
    rows: list[tuple[tuple[str, ...], ...]] = [((), ("x", "y")), (("z",), ())]
    entries = [replace(one.entry, rdma=row, addresses=("10.9.0.1",)) for one, row in zip(job.sites, rows, strict=True)]
    job = Job(tuple(replace(one, entry=entry) for one, entry in zip(job.sites, entries, strict=True)), KEY)
    assert env.rdma_devices(job) == [[None, ["x", "y"]], ["z", None]]
    assert env.ring(job) == [["10.9.0.1:8000"], ["10.9.0.1:8001"]]
    assert env.ferrule_env(job, 1)["FERRULE_ADDRESS"] == "192.168.1.101:7000"


def test_ranks_of_one_host() -> None:
    job = Job((site(HostFacts("here", "m", 4), "127.0.0.1", (0, 1)),), KEY)
    assert env.nccl_defaults(job, job.sites[0]) == {"NCCL_SOCKET_IFNAME": "=lo"}
    assert env.ring(job) == [["127.0.0.1:8000"], ["127.0.0.1:8001"]]
    assert set(env.mlx_files(job)) == {"MLX_HOSTFILE"}
    alone = Job((site(HostFacts("here", "m", 4), "127.0.0.1", (0,)),), KEY)
    assert env.mlx_env(alone, 0) == env.mlx_files(alone) == {}
    fixed = with_ports(job, 29500)
    assert env.torch_env(fixed, 1)["MASTER_PORT"] == "29500"
    assert len({*fixed.sites[0].ports}) == 6


def test_addresses_of_hosts() -> None:
    a, b = HostEntry("a"), HostEntry("b")
    face = Face("eth0", "10.0.0.1", 24)
    here = HostFacts("a", "1", 1, faces=(face, Face("eth0", "fd00::1", 64)))
    there = HostFacts("b", "2", 1, client="10.0.0.1", server="10.0.0.2")
    # The launcher's own host is known to the others by the address that ssh came from.
    assert find_addresses([a, b], [here, there], ["10.5.5.5", ""]) == ["10.0.0.1", "10.0.0.2"]
    assert find_addresses([a, b], [here, replace(there, client="10.1.1.1")], ["10.5.5.5", ""])[0] == "10.5.5.5"
    assert find_addresses([a, b], [replace(here, server="fd00::1"), there], ["", ""])[0] == "10.0.0.1"
    assert find_addresses([replace(a, addresses=("x",)), b], [here, there], ["", ""])[0] == "x"
    assert find_addresses([a], [here], [""]) == ["127.0.0.1"]
    with pytest.raises(ConfigError, match="by which address the other hosts reach a is not known"):
        find_addresses([a, b], [here, replace(there, client="")], ["", ""])
    with pytest.raises(ConfigError, match="a and b are the same machine"):
        find_addresses([a, b], [here, replace(there, machine="1")], ["", ""])


def test_versions_that_differ_are_named() -> None:
    one = HostFacts("a", "1", 1, versions=(("ferrule", "0.1.0"), ("torch", "2.9"), ("python", "3.12")))
    two = replace(one, versions=(("ferrule", "0.2.0"), ("python", "3.12")))
    assert version_skew(["a", "b"], [one, two]) == ["ferrule differs: 0.1.0 on a, 0.2.0 on b"]
    facts = recorded("mac-studio-1")
    assert msgspec.json.decode(msgspec.json.encode(facts), type=HostFacts) == facts

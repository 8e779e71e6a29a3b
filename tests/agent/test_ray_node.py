"""Choice of the host of Ray's head by an agent."""

from types import SimpleNamespace

import pytest

from agents import make_home
from ferrule.agent.ray import node
from ferrule.agent.ray.desired import Decide
from ferrule.cluster.desired import DesiredRay
from ferrule.cluster.records import RAY, Knowledge, Member, RayRecord

OWN, OTHER = "a" * 32, "b" * 32


class ClusterState:
    """Knowledge of one host. ``silent``: since when nothing was heard of the other one."""

    def __init__(self, desired, silent):
        self.host, self.silent, self.up = OWN, silent, silent == 0
        versions = ("0.1.0", "3.11.7", "2.60.0")
        members = [Member(host, f"strix-{host[0]}", 8421, ("127.0.0.1",), *versions) for host in (OWN, OTHER)]
        self.settings = SimpleNamespace(listen="")
        self.knowledge = Knowledge()
        for member in members:
            self.knowledge, _ = self.knowledge.introduced(member)
        self.write_ray(desired)
        self.peers = {OTHER: SimpleNamespace(up=self.up, address=("127.0.0.1", 8421))}

    @property
    def member(self):
        return self.knowledge.members[OWN]

    def write_ray(self, value):
        self.knowledge, _ = self.knowledge.written(RayRecord(name=RAY, version=0, writer=OWN, value=value))

    def is_up(self, host):
        return host == self.host or self.up

    def silent_seconds(self, host):
        return self.silent if host == OTHER else 0.0


def decide(ray, cluster):
    """Change the record as is due, and do nothing else."""
    for action in ray.planned():
        if isinstance(action, Decide):
            cluster.write_ray(action.desired)


@pytest.mark.parametrize(
    ("head", "address", "silent", "expected"),
    [
        (OTHER, "10.0.0.2", 2.0, (OTHER, "10.0.0.2")),  # it may come back
        (OTHER, "10.0.0.2", 6.0, (OWN, "10.0.0.1")),
        (OWN, "10.0.0.9", 0.0, (OWN, "127.0.0.1")),  # the address by which the other one comes
        (OWN, "10.0.0.9", 6.0, (OWN, "10.0.0.9")),  # the cable may be back soon
        (OWN, "10.0.0.1", 0.0, (OWN, "10.0.0.1")),
    ],
)
def test_the_head_moves_only_where_it_has_to(tmp_path, monkeypatch, head, address, silent, expected):
    monkeypatch.setattr(node, "_own_addresses", lambda: ["10.0.0.1", "127.0.0.1"])
    cluster = ClusterState(DesiredRay(head, address), silent)
    decide(node.RayNode(make_home(tmp_path, "here"), cluster), cluster)
    desired = cluster.knowledge.ray
    assert (desired.head, desired.address) == expected


def test_a_head_that_no_other_host_can_reach_moves_once(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "_own_addresses", lambda: ["10.0.0.1", "127.0.0.1"])
    monkeypatch.setattr(node, "address_toward", lambda address: "10.0.0.1")
    cluster = ClusterState(DesiredRay(OWN, "127.0.0.1"), 0.0)
    ray = node.RayNode(make_home(tmp_path, "here"), cluster)
    decide(ray, cluster)
    first = cluster.knowledge.records["ray", RAY]
    assert first.value.address == "10.0.0.1"
    decide(ray, cluster)
    assert cluster.knowledge.records["ray", RAY] is first

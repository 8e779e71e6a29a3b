"""Where an agent wants Ray's head to be."""

from types import SimpleNamespace

import pytest
from agents import make_home

from ferrule.cluster.raynode import nodes
from ferrule.cluster.raynode.wish import NAME, RayWish
from ferrule.cluster.records import RAY, Knowledge, Member

OWN, OTHER = "a" * 32, "b" * 32


class Circle:
    """What one host knows. ``silent``: since when nothing was heard of the other one."""

    def __init__(self, wish, silent):
        self.host, self.silent, self.up = OWN, silent, silent == 0
        versions = ("0.1.0", "3.11.7", "2.60.0")
        members = [Member(host, f"strix-{host[0]}", 8421, ("127.0.0.1",), *versions) for host in (OWN, OTHER)]
        self.settings = SimpleNamespace(listen="")
        self.knowledge = Knowledge()
        for member in members:
            self.knowledge, _ = self.knowledge.introduced(member)
        self.write(RAY, NAME, wish.to_json())
        self.peers = {OTHER: SimpleNamespace(up=self.up, way=("127.0.0.1", 8421))}

    def write(self, kind, name, value):
        self.knowledge, _ = self.knowledge.written(kind, name, value, OWN)

    def is_up(self, host):
        return host == self.host or self.up

    def silent_seconds(self, host):
        return self.silent if host == OTHER else 0.0


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
    monkeypatch.setattr(nodes, "_own_addresses", lambda: ["10.0.0.1", "127.0.0.1"])
    circle = Circle(RayWish(head, address), silent)
    nodes.RayNodes(make_home(tmp_path, "here"), circle).decide()
    wish = RayWish.from_json(circle.knowledge.present(RAY)[NAME])
    assert (wish.head, wish.address) == expected


def test_a_head_that_nobody_else_can_reach_moves_once(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "_own_addresses", lambda: ["10.0.0.1", "127.0.0.1"])
    monkeypatch.setattr(nodes, "address_toward", lambda address: "10.0.0.1")
    circle = Circle(RayWish(OWN, "127.0.0.1"), 0.0)
    ray = nodes.RayNodes(make_home(tmp_path, "here"), circle)
    ray.decide()
    first = circle.knowledge.records[RAY, NAME]
    assert first.value["address"] == "10.0.0.1"
    ray.decide()
    assert circle.knowledge.records[RAY, NAME] is first

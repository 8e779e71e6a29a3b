"""Hosts of each replica in a cluster, and planners that know of hosts beside them."""

import asyncio

import pytest
from test_cluster_planner import GB, MEMBERS, FakeCluster, form

from ferrule.agent.placement import replicas as cluster_replicas
from ferrule.agent.placement.planner import ClusterPlanner
from ferrule.agent.placement.replicas import replica_hosts
from ferrule.engine.options import EngineOptions
from ferrule.errors import ConfigError, ModelUnavailable
from ferrule.model import read_model

NAMES = [member.name for member in MEMBERS]


@pytest.fixture
def spec():
    return read_model("llama-3.1-8b")


def hosts(monkeypatch, spec, count, memory=(64 * GB,) * 3, wanted=(), away=(), **options):
    cluster = FakeCluster(monkeypatch, memory)
    monkeypatch.setattr(cluster_replicas, "ask_here", cluster.ask_here)
    for name in away:
        cluster.answering.remove(MEMBERS[NAMES.index(name)].host)
    split = "tensor" in options
    return asyncio.run(replica_hosts(None, EngineOptions("x", **options), wanted, count, spec, split=split))


def test_each_replica_has_hosts_of_its_own_and_the_rest_are_spare(monkeypatch, spec):
    assert hosts(monkeypatch, spec, 3) == (("hosta",), ("hostb",), ("hostc",))
    # 16 GB of weights: hostc holds a copy alone, the others together.
    assert hosts(monkeypatch, spec, 2, (14 * GB, 14 * GB, 64 * GB)) == (("hostc",), ("hosta", "hostb"))
    two = hosts(monkeypatch, spec, 2)
    assert sorted(name for group in two for name in group) == NAMES
    assert hosts(monkeypatch, spec, 2, wanted=("hosta", "hostc")) == (("hosta",), ("hostc",))


def test_a_host_that_is_away_keeps_its_place(monkeypatch, spec):
    assert hosts(monkeypatch, spec, 3, away=["hostb"]) == (("hosta",), ("hostb",), ("hostc",))
    assert hosts(monkeypatch, spec, 2, away=["hostc"]) == (("hosta",), ("hostb", "hostc"))


def test_as_the_user_split_it_hosts_are_dealt_out_by_name(monkeypatch, spec):
    assert hosts(monkeypatch, spec, 2, tensor=2) == (("hosta",), ("hostb", "hostc"))
    assert hosts(monkeypatch, spec, 0, tensor=1) == (("hosta",), ("hostb",), ("hostc",))
    assert hosts(monkeypatch, spec, 0, tensor=2) == (("hosta", "hostb", "hostc"),)


def test_auto_is_one_copy_where_more_do_not_fit_or_gain_nothing(monkeypatch, spec):
    assert hosts(monkeypatch, spec, 0, (12 * GB,) * 3) == (("hosta", "hostb", "hostc"),)
    assert hosts(monkeypatch, spec, 0) == (("hosta", "hostb", "hostc"),), "a pipeline does as much"
    monkeypatch.setattr("ferrule.plan.replicas.WORTH_IT", 0.2)
    assert hosts(monkeypatch, spec, 0) == (("hosta",), ("hostb",), ("hostc",))


def test_fewer_hosts_than_replicas_are_said(monkeypatch, spec):
    with pytest.raises(ConfigError, match=r"4 replicas need 4 hosts .* there are 3: hosta, hostb, hostc; .* --here"):
        hosts(monkeypatch, spec, 4)
    with pytest.raises(ConfigError, match="2 replicas need 2 hosts that can run the model, and there are 1: hostb"):
        hosts(monkeypatch, spec, 2, wanted=("hostb",))
    with pytest.raises(ConfigError, match="--hosts: the cluster has no hostz, only hosta, hostb, hostc"):
        hosts(monkeypatch, spec, 2, wanted=("hosta", "hostb", "hostz"))


def test_replicas_on_hosts_of_one_machine_divide_its_processors(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch, (48 * GB,) * 3)
    cluster.kernels[MEMBERS[1].host] = cluster.kernels[MEMBERS[0].host]
    for options, split in ((EngineOptions("x"), False), (EngineOptions("x", tensor=1), True)):
        planner = ClusterPlanner(None, options, split=split, wanted=("hosta",), beside=("hostb", "hostc"))
        assert form(planner, spec).starter.threads == (2,)
        assert planner.placed.hosts == ("hosta",)
    assert planner.speed() == 1.0, "the user said how to split"
    assert ClusterPlanner(None, options, split=True).speed() == 1.0


def test_a_replica_waits_for_its_hosts(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch)
    cluster.answering.remove(MEMBERS[1].host)
    planner = ClusterPlanner(None, EngineOptions("x"), split=False, wanted=("hostb",), beside=("hosta",))
    with pytest.raises(ModelUnavailable, match="none of the hosts hostb answers"):
        form(planner, spec)

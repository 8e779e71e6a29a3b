"""Whole copies of a model on hosts of a lab, as a user has them served."""

import pytest

from ferrule.lab import Lab, pair
from lab_hosts import Hosts, Stream, token_in


@pytest.fixture
def hosts(emulated_hosts, tmp_path):
    with Lab(pair()) as lab:
        yield Hosts(lab, tmp_path)


@pytest.mark.slow
def test_answers_outlive_the_host_of_their_copy_and_it_comes_back(hosts):
    token = token_in(hosts.run(0, "up", "--no-mdns"))
    hosts.run(1, "up", "--no-mdns", "--join", token)
    words = ("serve", "demo", "--replicas", "2", "--tp", "1", "--threads", "1", "--dtype", "float32", "--no-standby")
    shown = hosts.run(0, *words, timeout=180)
    assert "single on host0" in shown
    assert "single on host1" in shown

    def copies():
        (row,) = hosts.models(0)
        return row.state, [(each.state, each.hosts) for each in row.replicas]

    assert copies() == ("ready", [("ready", ("host0",)), ("ready", ("host1",))])
    undisturbed = Stream(hosts).rest()
    both = [Stream(hosts), Stream(hosts)]  # one at each copy
    for stream in both:
        stream.read(20)
    hosts.kill(1)
    assert [stream.rest() for stream in both] == [undisturbed] * 2
    hosts.until(lambda: copies()[1][1][0] == "waiting")
    (row,) = hosts.models(0)
    assert row.state == "ready"
    assert "replica 2 of 2 is waiting: none of the hosts host1 answers" in row.note
    assert Stream(hosts).rest() == undisturbed
    hosts.run(1, "up")
    hosts.until(lambda: copies() == ("ready", [("ready", ("host0",)), ("ready", ("host1",))]))

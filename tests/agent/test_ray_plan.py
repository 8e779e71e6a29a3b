"""Plan of an agent for its Ray node: the pure part."""

from dataclasses import replace

import pytest

from ferrule.agent.control_loop import TAKE_OVER_SECONDS, pause_after
from ferrule.agent.ray.desired import (
    Begin,
    Begun,
    Decide,
    End,
    Ended,
    Failed,
    GiveUp,
    Node,
    NodePlan,
    Up,
    View,
    after,
    plan,
)
from ferrule.cluster.desired import DesiredRay
from ferrule.cluster.records import Member

A, B = "a" * 32, "b" * 32
MEMBERS = {host: Member(host, f"strix-{host[0]}", 8421, ("10.0.0.1",), "0.1.0", "3.11.7", "2.60.0") for host in (A, B)}
NOW = 1000.0
HEAD_HERE, HEAD_THERE = DesiredRay(A, "10.0.0.1"), DesiredRay(B, "10.0.0.2")
VIEW = View(MEMBERS[A], MEMBERS, {A, B}, 0.0, ("10.0.0.1", "127.0.0.1"), "10.0.0.1", "10.0.0.1")
AS_HEAD = NodePlan(HEAD_HERE, "strix-a", "10.0.0.1", is_head=True)
AS_NODE = NodePlan(HEAD_THERE, "strix-a", "10.0.0.1", is_head=False)


def up(planned):
    return after(after(Node(), Begun(planned), NOW), Up(), NOW)


def test_a_node_begins_as_the_record_says_and_then_goes_on():
    assert plan(Node(), None, VIEW, NOW) == []
    assert plan(Node(), HEAD_HERE, VIEW, NOW) == [Begin(AS_HEAD)]
    assert plan(Node(), HEAD_THERE, VIEW, NOW) == [Begin(AS_NODE)]
    assert plan(up(AS_HEAD), HEAD_HERE, VIEW, NOW) == []
    assert (up(AS_HEAD).state, up(AS_NODE).state) == ("head", "node")


def test_a_node_ends_with_the_record_and_begins_anew_with_another():
    assert plan(up(AS_HEAD), None, VIEW, NOW) == [End()]
    assert after(up(AS_HEAD), Ended(), NOW) == Node()
    assert plan(up(AS_HEAD), HEAD_THERE, VIEW, NOW) == [End(), Begin(AS_NODE)]


def test_a_node_that_ends_is_started_again_later_and_later_until_it_was_up():
    node, now = up(AS_HEAD), NOW
    for pause in map(pause_after, range(7)):
        node = after(node, Failed("it ended"), now)
        assert (node.state, node.why, node.running) == ("failed", "it ended", False)
        assert plan(node, HEAD_HERE, VIEW, now + pause - 0.01) == []
        now += pause
        assert plan(node, HEAD_HERE, VIEW, now) == [Begin(AS_HEAD)]
        node = after(node, Begun(AS_HEAD), now)
    assert after(after(node, Up(), now), Failed("it ended"), now).again == now + pause_after(0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"up": {A}}, "the host of Ray's head does not answer"),
        ({"members": {A: MEMBERS[A]}}, "the host of Ray's head does not answer"),
        ({"own": replace(MEMBERS[A], ray="")}, "Ray is not installed here"),
        ({"no_route": "there is no route to 10.0.0.2"}, "there is no route"),
    ],
)
def test_a_host_that_cannot_have_a_node_says_why_once(change, why):
    view = replace(VIEW, **change)
    (given_up,) = plan(Node(), HEAD_THERE, view, NOW)
    assert isinstance(given_up, GiveUp)
    assert why in given_up.why
    node = after(Node(), Failed(given_up.why, lasting=True), NOW)
    assert (node.state, node.plan) == ("failed", None)
    assert plan(node, HEAD_THERE, view, NOW) == []
    assert plan(node, HEAD_THERE, VIEW, NOW) == [End(), Begin(AS_NODE)]
    assert plan(node, None, view, NOW) == [End()]


def test_a_node_that_works_goes_on_while_its_head_is_silent():
    silent = replace(VIEW, up={A}, head_silent=TAKE_OVER_SECONDS)
    assert plan(up(AS_NODE), HEAD_THERE, silent, NOW) == []
    gone = replace(silent, head_silent=TAKE_OVER_SECONDS + 1)
    here = replace(HEAD_THERE, head=A, address="10.0.0.1")
    decided, end, begin = plan(up(AS_NODE), HEAD_THERE, gone, NOW)
    assert isinstance(decided, Decide)
    assert decided.desired == here
    assert (end, begin) == (End(), Begin(NodePlan(here, "strix-a", "10.0.0.1", is_head=True)))


@pytest.mark.parametrize(
    ("address", "change", "expected"),
    [
        ("10.0.0.1", {}, None),
        ("127.0.0.1", {}, "10.0.0.1"),  # the other host cannot come there
        ("127.0.0.1", {"up": {A}}, None),
        ("10.0.0.9", {}, "10.0.0.1"),
        ("10.0.0.9", {"up": {A}}, None),  # the cable may be back soon
    ],
)
def test_the_heads_address_changes_only_where_it_has_to(address, change, expected):
    desired = DesiredRay(A, address)
    decided = [each for each in plan(Node(), desired, replace(VIEW, **change), NOW) if isinstance(each, Decide)]
    assert [each.desired.address for each in decided] == ([] if expected is None else [expected])


def test_a_head_that_failed_alone_tries_another_address():
    failed = after(Node(), Failed("no such address", lasting=True), NOW)
    (decided, *_) = plan(failed, DesiredRay(A, "10.0.0.9"), replace(VIEW, up={A}), NOW)
    assert isinstance(decided, Decide)
    assert decided.desired.address == "10.0.0.1"

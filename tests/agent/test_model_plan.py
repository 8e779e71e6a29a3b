"""Plan of an agent for the models that should be up: the pure part."""

from dataclasses import replace

import pytest

from agents import desired
from ferrule.agent.control_loop import TAKE_OVER_SECONDS, pause_after
from ferrule.agent.models.desired import (
    GIVE_BACK_SECONDS,
    Accept,
    Failed,
    Move,
    Server,
    Start,
    Started,
    Stop,
    Told,
    View,
    after,
    plan,
)
from ferrule.cluster.reports import ServerState

A, B, C = "a" * 32, "b" * 32, "c" * 32
NOW = 1000.0
HERE = View(A, {A, B}, {A: 0.0, B: 0.0})
ALONE = View(A, {A}, {A: 0.0, B: TAKE_OVER_SECONDS + 1})
MODEL = desired(A)
RUNNING = Server(MODEL, NOW, running=True)


def told(server, state, since=NOW):
    return after(server, Told(ServerState(state=state)), since)


def test_a_new_model_is_accepted_and_started_and_then_left_alone():
    assert plan({}, (), {"m": MODEL}, HERE, NOW) == [Accept("m", MODEL), Start("m")]
    assert plan({"m": Server(MODEL, NOW)}, (), {"m": MODEL}, HERE, NOW) == [Start("m")]
    assert plan({"m": RUNNING}, (), {"m": MODEL}, HERE, NOW) == []
    assert plan({}, (), {"m": desired(B)}, HERE, NOW) == []


def test_a_model_that_is_not_wanted_here_any_more_is_stopped():
    assert plan({"m": RUNNING}, (), {}, HERE, NOW) == [Stop("m")]
    moved = desired(B, host=B)
    assert plan({"m": RUNNING}, (), {"m": moved}, HERE, NOW) == [Stop("m")]


def test_a_changed_record_waits_for_the_old_process_to_end():
    changed = replace(MODEL, port=9000)
    assert plan({"m": RUNNING}, (), {"m": changed}, HERE, NOW) == [Stop("m"), Accept("m", changed)]
    assert plan({"m": Server(changed, NOW)}, ("m",), {"m": changed}, HERE, NOW) == []
    assert plan({"m": Server(changed, NOW)}, (), {"m": changed}, HERE, NOW) == [Start("m")]
    # One that has no process has nothing to wait for.
    failed = after(RUNNING, Failed("gone"), NOW)
    assert plan({"m": failed}, (), {"m": changed}, HERE, NOW) == [Stop("m"), Accept("m", changed), Start("m")]


def test_a_server_that_ends_is_started_again_later_and_later_until_it_was_ready():
    server, now = RUNNING, NOW
    for pause in map(pause_after, range(7)):
        server = after(server, Failed("it crashed"), now)
        assert (server.told.state, server.told.detail, server.running) == ("failed", "it crashed", False)
        assert plan({"m": server}, (), {"m": MODEL}, HERE, now + pause - 0.01) == []
        now += pause
        assert plan({"m": server}, (), {"m": MODEL}, HERE, now) == [Start("m")]
        server = told(after(server, Started(), now), "loading", now)
    server = after(told(server, "ready", now), Failed("it crashed"), now)
    assert server.again == now + pause_after(0)


@pytest.mark.parametrize(
    ("view", "moves"),
    [
        (ALONE, True),
        (replace(ALONE, silent={A: 0.0, B: TAKE_OVER_SECONDS}), False),  # it may only be slow
        (HERE, False),
        (View(A, {A, C}, {A: 0.0, B: 60.0}), True),
        (View(C, {A, C}, {A: 0.0, B: 60.0}), False),  # the first by id takes it
        (View(A, {A, C}, {A: 0.0, B: 60.0}, {C}), True),
        (View(A, {A, C}, {A: 0.0, B: 60.0}, {A}), False),  # it could not serve it
    ],
)
def test_the_first_of_the_hosts_that_answer_takes_over_from_one_that_is_gone(view, moves):
    model = desired(B)
    actions = plan({}, (), {"m": model}, view, NOW)
    taken = replace(model, host=A)
    assert [(type(each), each.name) for each in actions] == (
        [(Move, "m"), (Accept, "m"), (Start, "m")] if moves else []
    )
    if moves:
        assert (actions[0].desired, actions[1].desired) == (taken, taken)


def test_what_was_taken_over_and_cannot_be_served_goes_back_to_an_owner_that_answers():
    model = desired(B, host=A)
    late = NOW + GIVE_BACK_SECONDS + 0.1
    failing = {"m": after(Server(model, NOW), Failed("no such directory"), NOW)}
    assert [type(each) for each in plan(failing, (), {"m": model}, HERE, late)] == [Move, Stop]
    assert plan(failing, (), {"m": model}, HERE, late)[0].desired.host == B
    assert Move not in {type(each) for each in plan(failing, (), {"m": model}, ALONE, late)}  # to nowhere
    assert Move not in {type(each) for each in plan(failing, (), {"m": model}, HERE, NOW + GIVE_BACK_SECONDS)}
    serving = {"m": told(Server(model, NOW, running=True), "ready")}
    assert plan(serving, (), {"m": model}, HERE, late) == []
    own = {"m": after(Server(MODEL, NOW), Failed("no such directory"), NOW)}
    assert Move not in {type(each) for each in plan(own, (), {"m": MODEL}, HERE, late)}


@pytest.mark.parametrize(("state", "back"), [("ready", True), ("recovering", True), ("loading", False)])
def test_the_owner_takes_back_what_it_still_serves(state, back):
    model = desired(A, host=B)
    actions = plan({"m": told(RUNNING, state)}, (), {"m": model}, HERE, NOW)
    assert actions == ([Move("m", MODEL, actions[0].why)] if back else [Stop("m")])


def test_models_do_not_hold_each_other_up():
    other = desired(A, port=8422)
    found = plan({"m": RUNNING}, ("x",), {"m": MODEL, "n": other, "x": other}, HERE, NOW)
    assert found == [Accept("n", other), Start("n"), Accept("x", other)]

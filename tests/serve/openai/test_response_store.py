"""Responses that are kept: bounded in number, bytes and time, apart by owner, and sharing what they have in common."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from ferrule.serve.http.errors import ApiError
from ferrule.serve.openai.responses.objects import ResponseBody
from ferrule.serve.openai.responses.store import Kept, Responses, Segment, segment


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def item(name: str, text: str = "x") -> dict[str, Any]:
    return {"id": name, "type": "message", "text": text}


def body(name: str) -> ResponseBody:
    echo: list[Any] = [
        None,
        None,
        None,
        {},
        True,
        None,
        None,
        {},
        None,
        True,
        1.0,
        {},
        "auto",
        [],
        0,
        1.0,
        "disabled",
        None,
    ]
    return ResponseBody(name, 0, "m", "completed", [], *echo)


def kept(name: str, before: tuple[Segment, ...] = (), owner: str = "a", text: str = "x") -> Kept:
    made = segment([item(f"out_{name}")])
    return Kept(owner, body(name), before, segment([item(f"in_{name}", text)]), made, Segment((), 100))


def found(responses: Responses, *names: str, owner: str = "a") -> list[str]:
    there = []
    for name in names:
        with suppress(ApiError):
            there.append(responses.get(name, owner).body.id)
    return there


def test_the_oldest_goes_first_and_use_makes_young() -> None:
    responses = Responses(most=2)
    for name in ("r1", "r2"):
        responses.keep(kept(name))
    assert found(responses, "r1") == ["r1"]
    responses.keep(kept("r3"))
    assert found(responses, "r1", "r2", "r3") == ["r1", "r3"]


def test_what_is_not_used_for_long_is_gone_with_its_bytes() -> None:
    clock = Clock()
    responses = Responses(seconds=10, clock=clock)
    responses.keep(kept("r1"))
    clock.now = 9
    assert found(responses, "r1") == ["r1"]
    assert responses.item("in_r1", "a") == item("in_r1")
    clock.now = 19
    assert responses.item("in_r1", "a") is None
    assert found(responses, "r1") == []
    assert (len(responses), responses.bytes) == (0, 0)


def test_a_talk_counts_its_items_once_and_outlives_its_first_responses() -> None:
    responses = Responses()
    before: tuple[Segment, ...] = ()
    for at in range(20):
        response = kept(f"r{at}", before, text="x" * 1000)
        responses.keep(response)
        before = response.history
    once = sum(each.size for each in before)
    assert responses.bytes == once + 20 * 100
    for at in range(19):
        responses.delete(f"r{at}", "a")
    assert responses.bytes == once + 100
    assert len(responses.get("r19", "a").input) == 39
    responses.delete("r19", "a")
    assert responses.bytes == 0


def test_bytes_are_bounded_even_by_one_that_is_too_large() -> None:
    responses = Responses(most_bytes=5000)
    for name in ("r1", "r2", "r3"):
        responses.keep(kept(name, text="x" * 2000))
    assert found(responses, "r1", "r2", "r3") == ["r2", "r3"]
    responses.keep(kept("r4", text="x" * 6000))
    assert (len(responses), responses.bytes) == (0, 0)


def test_one_owner_finds_nothing_of_another() -> None:
    responses = Responses()
    responses.keep(kept("r1"))
    assert found(responses, "r1", owner="b") == []
    assert responses.item("in_r1", "b") is None
    with pytest.raises(ApiError) as refused:
        responses.delete("r1", "b")
    assert refused.value.status == 404
    assert found(responses, "r1") == ["r1"]

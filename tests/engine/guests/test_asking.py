"""Answers that go on after a crash, and tokens that a guest leaves untold; what it says is scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from ferrule.engine.guests.asking import asked, pieces
from ferrule.engine.guests.events import MOST_BYTES, events
from ferrule.engine.guests.llama_cpp.guest import LlamaCpp
from ferrule.engine.guests.running import Running
from ferrule.engine.host.requests import Request
from ferrule.engine.types import Constraint, SamplingParams
from ferrule.errors import EngineError

FREE = SamplingParams(seed=3)
BOUND = replace(FREE, constraint=Constraint("json_schema", "{}"))


class Scripted:
    """`Running`: ``streams`` and ``wholes`` are what it says to one request after the other."""

    def __init__(self, streams: list[list[bytes]], wholes: list[list[int]] = []) -> None:  # noqa: B006
        self.guest = LlamaCpp()
        self.streams, self.wholes = iter(streams), iter(wholes)
        self.asked: list[dict[str, Any]] = []

    @asynccontextmanager
    async def stream(self, post: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append(dict(post.body))

        async def said() -> AsyncIterator[bytes]:
            for each in next(self.streams):
                yield each

        yield said()

    async def whole(self, post: Any) -> bytes:
        self.asked.append(dict(post.body))
        return told(next(self.wholes), post.body["n_predict"], "limit")


def told(tokens: list[int], count: int, stop: str = "") -> bytes:
    said = {
        "tokens": tokens,
        "content": "x",
        "tokens_predicted": count,
        "stop": bool(stop),
        "stop_type": stop or "none",
    }
    return json.dumps(said | {"stop_type": stop or "none"}).encode()


def made(running: Scripted, params: SamplingParams = FREE, before: tuple[int, ...] = (), most: int = 4) -> list[int]:
    """The tokens behind ``before``, which had come already."""
    request = Request(1, (8, 9), params, made=[*before])

    async def main() -> None:
        async for piece in pieces(cast(Running, running), request, most):
            request.made += [token.id for token in piece.tokens]
            if len(request.made) >= most:
                return

    asyncio.run(main())
    return request.made[len(before) :]


def test_it_goes_on_behind_the_tokens_that_had_come() -> None:
    running = Scripted([[told([22], 1), told([23], 2), told([], 2, "limit")]])
    assert made(running, before=(20, 21)) == [22, 23]
    (first,) = running.asked
    assert (first["prompt"], first["n_predict"]) == ((8, 9, 20, 21), 2)
    assert first["seed"] != FREE.seed
    again, _ = asked(running.guest, Request(1, (8, 9), FREE, made=[20, 21]), 4)
    assert again.params.seed == first["seed"]  # which follows from the place


def test_untold_tokens_are_asked_for_in_one_piece() -> None:
    running = Scripted([[told([20], 1), told([23], 4)], [told([23], 1), told([], 1, "limit")]], [[21, 22]])
    assert made(running) == [20, 21, 22, 23]
    assert [each["prompt"] for each in running.asked] == [(8, 9), (8, 9, 20), (8, 9, 20, 21, 22)]
    assert [each["stream"] for each in running.asked] == [True, False, True]
    assert running.asked[1]["n_predict"] == 2
    ends_untold = Scripted([[told([20], 1), told([], 4, "limit")]], [[21, 22, 23]])
    assert made(ends_untold) == [20, 21, 22, 23]


def test_an_answer_that_is_made_anew_begins_as_before() -> None:
    """Tokens that had come are not yielded again, and those of them that are untold are known."""
    running = Scripted([[told([20], 1), told([22], 3), told([23], 4), told([], 4, "limit")]])
    assert made(running, BOUND, (20, 21)) == [22, 23]
    (first,) = running.asked
    assert (first["prompt"], first["n_predict"], first["seed"]) == ((8, 9), 4, 3)

    untold = Scripted([[told([20], 1), told([23], 4)], [told([23], 4), told([], 4, "limit")]], [[20, 21, 22]])
    assert made(untold, BOUND, (20,)) == [21, 22, 23]
    assert untold.asked[1]["n_predict"] == 3

    other = Scripted([[told([20], 1), told([99], 2)]])
    with pytest.raises(EngineError, match="made this answer anew with other tokens"):
        made(other, BOUND, (20, 21))


@pytest.mark.parametrize(
    ("streams", "wholes", "words"),
    [
        ([[told([20], 1)]], [], "ended an answer without saying why"),
        ([[told([20], 1), told([23], 4)]], [[]], "made 0 tokens of 2 without saying why"),
        ([[b"[DONE]"]], [], r"said what is no answer .*DONE"),
    ],
)
def test_answers_that_are_none(streams: list[list[bytes]], wholes: list[list[int]], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        made(Scripted(streams, wholes))


def test_events_are_read_however_they_are_cut() -> None:
    text = b": ping\n\ndata: one\n\ndata:two\r\ndata: three\r\n\r\nevent: x\n\ndata: cut"

    async def read(size: int) -> list[bytes]:
        async def chunks() -> AsyncIterator[bytes]:
            for at in range(0, len(text), size):
                yield text[at : at + size]

        return [each async for each in events(chunks(), "it")]

    for size in (1, 2, 7, 1000):
        assert asyncio.run(read(size)) == [b"one", b"two\nthree"]


def test_an_event_without_end_is_given_up() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    async def main() -> None:
        async for _ in events(endless(), "it"):
            pass

    with pytest.raises(EngineError, match=f"more than {MOST_BYTES:,} bytes"):
        asyncio.run(main())

"""The engine's conclusions from its ranks' messages. The ranks are sockets; no process is started."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest
from fake_ranks import FakeRanks, FakeStarter, rank_options

from ferrule.engine.host import failure_detector as detector_module
from ferrule.engine.host import ranks as ranks_module
from ferrule.engine.host.failure_detector import SILENT_SECONDS, TICK_SECONDS, FailureDetector
from ferrule.engine.host.placement import Loss
from ferrule.engine.host.ranks import Event, RankFailure, Ranks


def refuse(rank: int, event: Event) -> None:
    raise KeyError(f"nothing to do with {event}")


@pytest.mark.parametrize("words", [b"not JSON\n", b'{"event": "progress"}\n'])
def test_a_message_that_cannot_be_taken_is_a_failure_and_no_silence(words: bytes) -> None:
    async def loss() -> Loss:
        starter = FakeStarter()
        ranks = await Ranks.start(starter, rank_options(), refuse)
        starter.started[0].say(0, words)
        try:
            return await asyncio.wait_for(ranks.lost(), 10)
        finally:
            await ranks.stop(0)

    found = asyncio.run(loss())
    assert "rank 0: its message could not be taken" in str(found.error)
    assert found.crashed


def test_half_a_message_of_a_rank_that_died_is_no_message() -> None:
    async def loss() -> Loss:
        starter = FakeStarter()
        ranks = await Ranks.start(starter, rank_options(), refuse)
        starter.started[0].say(0, b'{"event": "tok')
        starter.started[0].die(0, -9)
        try:
            return await asyncio.wait_for(ranks.lost(), 10)
        finally:
            await ranks.stop(0)

    assert str(asyncio.run(loss()).error) == "rank 0 was killed by SIGKILL; its last words: oh"


def test_the_cause_is_chosen_over_its_consequences() -> None:
    started = FakeRanks(rank_options(ranks=3), hosts=("one", "two", "three"))
    failure = RankFailure()
    failure.report(0, "PeerLost", "rank 1 is gone", lost=1)
    loss = failure.loss(started)
    assert (str(loss.error), loss.ranks, loss.hosts, loss.crashed) == (
        "rank 0 on one: rank 1 is gone", (1,), ("two",), False
    )  # fmt: skip
    assert not failure.certain(started.poll())
    started.codes = [5, -9, None]
    loss = failure.loss(started)
    assert str(loss.error) == "rank 1 on two was killed by SIGKILL; its last words: oh"
    assert (loss.ranks, loss.crashed) == ((1,), True)
    assert failure.certain(started.poll())
    failure.report(2, "ModelError", "a tensor is missing")
    assert str(failure.loss(started).error) == "a tensor is missing"
    started.close()


def test_a_rank_that_was_stopped_before_it_met_the_others_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ranks_module, detector_module):  # there too: however long this process stood still, a tick is a tick
        monkeypatch.setattr(module, "TICK_SECONDS", 0.01)

    async def loss() -> Loss:
        starter = FakeStarter()
        options = replace(rank_options(2), meet_seconds=0.2)
        ranks = await Ranks.start(starter, options, refuse)

        async def live() -> None:
            while True:
                starter.started[0].tell(1, event="alive")
                await asyncio.sleep(0)

        living = asyncio.create_task(live())
        try:
            return await asyncio.wait_for(ranks.lost(), 20)
        finally:
            living.cancel()
            await ranks.stop(0)

    found = asyncio.run(loss())
    assert "rank 0: it has given no sign of life for" in str(found.error)
    assert (found.ranks, found.crashed) == ((0,), False)


def test_silence_is_not_held_against_ranks_while_the_watcher_stood_still_too() -> None:
    detector = FailureDetector(2, patience=25.0)
    detector.ready(0)
    assert detector.tick(3600.0) == {}  # a laptop that was shut
    ticks = 0
    while not (silent := detector.tick(TICK_SECONDS)):
        ticks += 1
    assert list(silent) == [0]  # the other one is loading still
    assert SILENT_SECONDS - 3 <= ticks <= SILENT_SECONDS
    detector.heard(0)
    while not (silent := detector.tick(TICK_SECONDS)):
        detector.heard(0)
        ticks += 1
    assert list(silent) == [1]
    assert 22 <= ticks <= 25


def test_ranks_meet_when_all_have_done_their_imports() -> None:
    async def scene() -> None:
        starter = FakeStarter()
        ranks = await Ranks.start(starter, rank_options(2), refuse)
        far = starter.started[0].far
        try:
            starter.started[0].tell(1, event="here")
            far[1].setblocking(False)
            await asyncio.sleep(0.01)
            with pytest.raises(BlockingIOError):
                far[1].recv(100)
            starter.started[0].tell(0, event="here")
            far[0].setblocking(False)
            async with asyncio.timeout(20):
                for end in far:
                    assert await asyncio.get_running_loop().sock_recv(end, 100) == b'{"op":"meet"}\n'
        finally:
            await ranks.stop(0)

    asyncio.run(scene())


def test_an_error_is_taken_up_at_once_and_a_host_that_does_not_answer_is_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(self: asyncio.StreamReader) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    async def loss(words: bytes) -> Loss:
        starter = FakeStarter()
        ranks = await Ranks.start(starter, rank_options(), refuse)
        starter.started[0].say(0, words)
        try:
            return await asyncio.wait_for(ranks.lost(), 10)
        finally:
            await ranks.stop(0)

    # Its process may take long to end.
    found = asyncio.run(loss(b'{"event": "error", "type": "PeerLost", "message": "rank 3 is gone", "lost": 3}\n'))
    assert (str(found.error), found.ranks, found.crashed) == ("rank 0: rank 3 is gone", (3,), False)
    monkeypatch.setattr(asyncio.StreamReader, "readline", late)
    found = asyncio.run(loss(b""))
    assert "rank 0: its host does not answer any more (Connection timed out)" in str(found.error)
    assert (found.ranks, found.crashed) == ((0,), False)

"""A model whose ranks die: what becomes of its requests. The ranks are sockets; no process is started."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fake_ranks import POISON, SPEC, FakePlanner, FakeRanks, FakeStarter, next_token

from ferrule.engine.host import local, migration, starting, supervisor
from ferrule.engine.host import ranks as ranks_module
from ferrule.engine.host import restart_policy as crashes
from ferrule.engine.host.local import LocalEngine
from ferrule.engine.host.placement import Deployment, Loss
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.host.requests import CALM_TOKENS, Requests
from ferrule.engine.host.restart_policy import MOST_CRASHES, RestartPolicy
from ferrule.engine.messages import Add, Attach, images_of
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.engine.types import Feature, ImageInput, PromptToken, SamplingParams
from ferrule.errors import EngineError, FerruleError, ModelError, ModelUnavailable, RequestError
from ferrule.plan import make_plan

SEEDED = SamplingParams(max_tokens=120, seed=5)
MISSING = "host two is away"


def undisturbed(prompt: list[int], count: int, seed: int = 5) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, seed))
    return tokens[len(prompt) :]


def running(
    planner: FakePlanner, body: Callable[[LocalEngine], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run ``body`` with an engine on two fake ranks, within a deadline."""
    monkeypatch.setattr(supervisor, "pause", lambda attempt: 0.01 * attempt)
    plan = make_plan(SPEC, pipeline=2)
    model = PreparedModel(Path("/nowhere"), SPEC, plan, cast(Any, None), SamplingParams(), frozenset(), "")

    async def main() -> None:
        engine = LocalEngine(EngineOptions("tiny", name="tiny"), model, planner)
        await engine.load(None)
        try:
            async with asyncio.timeout(20):
                await body(engine)
        finally:
            await engine.close()

    asyncio.run(main())


async def ask(
    engine: LocalEngine,
    prompt: list[int],
    params: SamplingParams = SEEDED,
    at: dict[int, Callable[[], None]] | None = None,
) -> list[int]:
    """The whole answer. ``at``: what to do after so many tokens."""
    made: list[int] = []
    async for token in engine.generate(prompt, params):
        made.append(token.id)
        if at and len(made) in at:
            at[len(made)]()
    return made


@pytest.mark.parametrize("victim", [0, 1])
def test_an_answer_goes_on_behind_its_last_token(victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    starter = FakeStarter(loads=9)
    planner = FakePlanner(starter)

    async def body(engine: LocalEngine) -> None:
        at = {n: lambda: starter.started[-1].die(victim, -9) for n in (30, 200)}
        long = SamplingParams(max_tokens=400, seed=5)
        assert await ask(engine, [1, 2, 3], long, at) == undisturbed([1, 2, 3], 400)
        health = engine.health()
        assert (health.state, health.error, health.recoveries) == ("ready", None, 2)
        assert health.last_recovery is not None
        assert (health.last_recovery.requests, f"rank {victim} was killed" in health.last_recovery.cause) == (1, True)

    running(planner, body, monkeypatch)
    again = [ranks.asked[0] for ranks in starter.started[1:]]
    assert all(message["prompt"] == [1, 2, 3] and message["params"]["seed"] == 5 for message in again)
    assert len(again[0]["made"]) >= 30
    assert [loss.ranks for loss in planner.losses if loss] == [(victim,)] * 2
    assert all(ranks.stopped for ranks in starter.started)
    assert starter.closed


@pytest.mark.parametrize("victim", [0, 1])
def test_those_that_are_left_keep_what_they_have_loaded(victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    starter = FakeStarter(loads=1)
    planner = FakePlanner(starter, keeps=True)
    other = 1 - victim

    async def body(engine: LocalEngine) -> None:
        (ranks,) = starter.started
        ranks.heirs = [True]

        def lose() -> None:
            ranks.die(victim, -9)
            ranks.keep(other, lost=victim)

        assert await ask(engine, [1, 2, 3], at={30: lose}) == undisturbed([1, 2, 3], 120)
        health = engine.health()
        assert (health.state, health.recoveries, ranks.replaced) == ("ready", 1, [[victim]])
        assert health.last_recovery is not None
        assert (health.last_recovery.kept, health.last_recovery.requests) == ((other,), 1)
        meet = next(each for each in ranks.asked if each["op"] == "meet")
        assert (meet["number"], meet["options"]["self_test"]) == (1, False)

    running(planner, body, monkeypatch)
    assert len(starter.started) == 1
    assert [loss for loss in planner.losses if loss] == []


@pytest.mark.parametrize("fault", ["silent", "none starts", "it dies", "two", "nobody is lost"])
def test_all_start_again_where_those_that_are_left_cannot_go_on(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "KEEP_SECONDS", 0.05)
    monkeypatch.setattr(ranks_module, "NAMED_SECONDS", 0.05)
    starter = FakeStarter(loads=2)
    planner = FakePlanner(starter, keeps=True)

    async def body(engine: LocalEngine) -> None:
        first = starter.started[0]
        first.heirs = [False] if fault == "it dies" else []

        def lose() -> None:
            if fault != "nobody is lost":
                first.die(0, -9)
            if fault == "two":
                first.die(1, -9)
            elif fault == "nobody is lost":
                first.keep(1, lost=None)
                first.keep(0, lost=None)
            elif fault != "silent":
                first.keep(1, lost=0)

        assert await ask(engine, [1, 2, 3], at={30: lose}) == undisturbed([1, 2, 3], 120)
        health = engine.health()
        assert (health.state, health.recoveries) == ("ready", 1)
        assert health.last_recovery is not None
        assert health.last_recovery.kept == ()
        assert first.replaced == ([[0]] if fault in ("none starts", "it dies") else [])

    running(planner, body, monkeypatch)
    assert len(starter.started) == 2
    assert all(ranks.stopped for ranks in starter.started)


def test_what_cannot_be_held_waits_is_refused_meanwhile_and_returns_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    starter = FakeStarter(loads=2)
    planner = FakePlanner(starter, ModelUnavailable(MISSING), ModelUnavailable(MISSING))
    refused: list[str] = []

    async def body(engine: LocalEngine) -> None:
        asking = asyncio.create_task(ask(engine, [4], at={50: lambda: starter.started[0].die(1, -9)}))
        while engine.health().state != "waiting":
            await asyncio.sleep(0.001)
        with pytest.raises(ModelUnavailable, match=MISSING):
            await ask(engine, [7])
        health = engine.health()
        refused.append(health.error or "")
        assert health.waiting == 1
        assert await asking == undisturbed([4], 120)
        assert engine.health().state == "ready"

    running(planner, body, monkeypatch)
    assert refused == [MISSING]


def test_a_request_that_comes_meanwhile_waits_may_leave_and_waits_no_longer_than_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starter = FakeStarter(loads=2)
    planner = FakePlanner(starter)
    held = asyncio.Event()
    place = planner.place

    async def hold(options: Any, loss: Loss | None) -> Any:
        if loss is not None:
            await held.wait()
        return await place(options, loss)

    monkeypatch.setattr(planner, "place", hold)

    async def body(engine: LocalEngine) -> None:
        starter.started[0].die(0, -9)
        while engine.health().state != "recovering":
            await asyncio.sleep(0.001)
        leaves = asyncio.create_task(ask(engine, [1]))
        stays = asyncio.create_task(ask(engine, [2]))
        await asyncio.sleep(0.01)
        monkeypatch.setattr(local, "NEW_SECONDS", 0.01)
        with pytest.raises(ModelUnavailable, match="not back within"):
            await ask(engine, [3])
        assert engine.health().waiting == 2
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        held.set()
        assert await stays == undisturbed([2], 120)

    running(planner, body, monkeypatch)
    assert [message["prompt"] for message in starter.started[1].asked] == [[2]]


def test_a_request_that_crashes_the_ranks_is_given_up_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    starter = FakeStarter(loads=99)

    async def body(engine: LocalEngine) -> None:
        others = [asyncio.create_task(ask(engine, [n], SamplingParams(max_tokens=300, seed=5))) for n in (1, 2, 3)]
        await asyncio.sleep(0.01)
        with pytest.raises(RequestError, match="3 crashes in a row") as caught:
            await ask(engine, [POISON])
        assert caught.value.code == "request_crashes_model"
        assert [await other for other in others] == [undisturbed([n], 300) for n in (1, 2, 3)]
        while engine.health().state != "ready":  # the others may have had their answers before the last crash
            await asyncio.sleep(0.001)
        assert engine.health().recoveries == 3

    running(FakePlanner(starter), body, monkeypatch)


@pytest.mark.parametrize(
    ("loads", "errors", "told"),
    [(1, (), f"{MOST_CRASHES} times within"), (2, (ModelError("a file is gone"),), "a file is gone")],
)
def test_it_gives_up_where_no_start_helps(
    loads: int, errors: tuple[FerruleError, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = FakeStarter(loads)

    async def body(engine: LocalEngine) -> None:
        with pytest.raises(EngineError, match=told):
            await ask(engine, [1], at={10: lambda: starter.started[0].die(0, -11)})
        health = engine.health()
        assert health.state == "failed"
        assert told in (health.error or "")
        with pytest.raises(EngineError, match="failed"):
            await ask(engine, [1])

    running(FakePlanner(starter, *errors), body, monkeypatch)
    assert len(starter.started) == (MOST_CRASHES if loads == 1 else 1)


def test_a_load_that_takes_too_long_says_how_far_each_rank_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(FakeStarter):
        async def start(self, options: RankOptions) -> FakeRanks:
            ranks = await super().start(options)
            ranks.say(1, b'{"event": "progress", "progress": {"rank": 1, "phase": "receive", "done": 1, "total": 9}}\n')
            return ranks

    async def body(engine: LocalEngine) -> None:
        pytest.fail("it was not loaded")

    monkeypatch.setattr(starting, "LOAD_TIMEOUT", 0.5)
    with pytest.raises(EngineError, match=r"more than 0\.5 s; .* rank 0: not begun, rank 1: receive"):
        running(FakePlanner(Slow()), body, monkeypatch)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREPARE_SECONDS", "LOOK_SECONDS", "STEP_SECONDS", "GRACE_SECONDS"):
        monkeypatch.setattr(migration, name, 0.005)


def test_a_model_moves_to_a_better_place_and_answers_go_on(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = FakeStarter(loads=9), FakeStarter(loads=9)
    planner = FakePlanner(before)

    async def body(engine: LocalEngine) -> None:
        def back() -> None:
            planner.next = Deployment(before.asked, after, after)

        asking = asyncio.create_task(ask(engine, [1, 2], SamplingParams(max_tokens=400, seed=5), {40: back}))
        monkeypatch.setattr(local, "NEW_SECONDS", 0.0)  # those that come during a move may wait as long as others
        while engine.health().state != "recovering":
            await asyncio.sleep(0)
        assert await ask(engine, [3]) == undisturbed([3], 120)
        assert await asking == undisturbed([1, 2], 400)
        health = engine.health()
        assert (health.state, health.recoveries) == ("ready", 0)

    running(planner, body, monkeypatch)
    assert (len(before.started), len(after.started)) == (1, 1)
    assert before.started[0].stopped


@pytest.mark.parametrize("heir", [True, False])
def test_only_ranks_that_are_elsewhere_move_if_that_works(
    heir: bool, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = FakeStarter(loads=9), FakeStarter(loads=9)
    before.moving = [0]
    planner = FakePlanner(before)

    async def body(engine: LocalEngine) -> None:
        def back() -> None:
            before.started[0].heirs = [heir]
            planner.next = Deployment(planner.options, after, after)

        long = SamplingParams(max_tokens=400, seed=5)
        assert await ask(engine, [1, 2], long, {40: back}) == undisturbed([1, 2], 400)
        health = engine.health()
        assert (health.state, health.recoveries) == ("ready", 0)

    running(planner, body, monkeypatch)
    assert before.started[0].replaced == [[0]]
    assert (len(before.started), len(after.started)) == (1, 0 if heir else 1)


def test_a_model_waits_for_a_good_moment_and_goes_back_where_it_cannot_move(
    soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = FakeStarter(loads=9), FakeStarter(loads=1)
    after.started.append(cast(Any, None))  # it has loaded its one time
    planner = FakePlanner(before)
    monkeypatch.setattr(migration, "GRACE_SECONDS", 600.0)

    async def body(engine: LocalEngine) -> None:
        answer = engine.generate([7], SamplingParams(max_tokens=500, seed=5))
        await anext(answer)
        planner.next = Deployment(before.asked, after, after)
        while not after.prepared:
            await asyncio.sleep(0.001)
        for _ in range(100):
            await anext(answer)
        assert len(after.started) == 1
        await answer.aclose()
        while len(before.started) < 2 or engine.health().state != "ready":
            await asyncio.sleep(0.001)
        assert await ask(engine, [4]) == undisturbed([4], 120)
        looks = before.prepared
        while before.prepared < looks + 3:
            await asyncio.sleep(0.001)

    running(planner, body, monkeypatch)
    assert (len(before.started), len(after.started)) == (2, 2)  # and it does not try that again so soon


def test_a_suspect_goes_on_alone_until_it_is_cleared() -> None:
    requests = Requests()
    one, two = requests.add([1], SEEDED), requests.add([2], SEEDED)
    for _ in range(2):
        for request in requests.due():
            requests.sent(request)
        assert requests.interrupted(crashed=True) == []
    three = requests.add([3], SEEDED)
    assert requests.due() == [one]
    requests.sent(one)
    assert requests.due() == []
    cleared = [requests.took(one, 0, last=False) for _ in range(CALM_TOKENS)]
    assert cleared == [False] * (CALM_TOKENS - 1) + [True]
    assert requests.due() == [two]
    requests.sent(two)
    assert requests.interrupted(crashed=False) == []  # a cable: no request is to blame
    requests.sent(two)
    assert requests.interrupted(crashed=True) == [two]
    assert requests.due() == [one, three]


def test_only_crashes_of_one_kind_within_a_while_are_hopeless() -> None:
    def crash(rank: int, words: str = "", *, crashed: bool = True) -> Loss:
        error = EngineError(f"rank {rank} was killed by SIGSEGV; its last words: {words}")
        return Loss(error, (rank,), ("",), crashed)

    history = RestartPolicy()
    assert not any(history.hopeless(crash(0, crashed=False), float(n)) for n in range(20))
    assert not any(history.hopeless(crash(0), n * crashes.CRASH_SECONDS / 4) for n in range(20))
    history.explained()
    found = [history.hopeless(crash(n % 2, f"word {n}"), 1e5 + n) for n in range(MOST_CRASHES)]
    assert found[:-1] == [None] * (MOST_CRASHES - 1)
    assert "6 times within 5 s" in (found[-1] or "")


def test_what_is_known_of_a_prompt_is_not_asked_again_and_kept_once() -> None:
    requests = Requests()
    scores = [PromptToken(-float(at), 1, ()) for at in range(6)]
    request = requests.add(range(7), SamplingParams(prompt_logprobs=0))
    requests.scored(request, 0, scores[:3])
    requests.interrupted(crashed=True)
    (order,) = request.messages()
    assert isinstance(order, Add)
    assert order.scored == 3
    requests.scored(request, 1, scores[1:5])  # more than was asked for
    requests.scored(request, 5, scores[5:])
    assert request.scores == scores


def test_the_images_of_a_prompt_come_again_after_a_crash() -> None:
    requests = Requests()
    feature = Feature("float32", (2, 600_000), bytes(4_800_000))
    images = (ImageInput(1, 2, {"pixel_values": feature}),)
    request = requests.add((5, 6, 6), SamplingParams(), images=images)
    for _ in range(2):
        *pieces, order = request.messages()
        assert isinstance(order, Add)
        assert order.images
        assert images_of(b"".join(each.piece for each in pieces if isinstance(each, Attach))) == images
        requests.sent(request)
        requests.interrupted(crashed=True)


def test_a_vector_is_computed_again_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    starter = FakeStarter(loads=2)

    async def body(engine: LocalEngine) -> None:
        asked = asyncio.create_task(engine.embed([[1, 2, 3], [4]]))
        while len(starter.started[0].asked) < 2:
            await asyncio.sleep(0)
        starter.started[0].die(1, -9)
        while len(starter.started) < 2 or len(starter.started[1].asked) < 2:
            await asyncio.sleep(0)
        again = starter.started[1]
        assert [(each["op"], each["prompt"], each["pooling"]) for each in again.asked] == [
            ("embed", [1, 2, 3], "last"),
            ("embed", [4], "last"),
        ]
        for number, row in ((1, [3.0, 4.0]), (2, [0.0, -2.0])):
            vector = base64.b64encode(np.array(row, np.float32).tobytes()).decode()
            again.tell(again.driver, event="embedded", id=again.asked[number - 1]["id"], vector=vector)
        assert [each.tolist() for each in await asked] == [pytest.approx([0.6, 0.8]), [0.0, -1.0]]
        leaving = asyncio.create_task(engine.embed([[5]]))
        while len(again.asked) < 3:
            await asyncio.sleep(0)
        leaving.cancel()
        while len(again.asked) < 4:
            await asyncio.sleep(0)
        assert (again.asked[3]["op"], again.asked[3]["id"]) == ("cancel", again.asked[2]["id"])
        with pytest.raises(RequestError, match="context"):
            await engine.embed([[1] * (engine.max_context + 1)])

    running(FakePlanner(starter), body, monkeypatch)


def test_a_model_that_is_drained_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """But what was asked before is answered to its end."""

    async def body(engine: LocalEngine) -> None:
        open_one = asyncio.create_task(ask(engine, [1, 2]))
        await asyncio.sleep(0)
        assert not await engine.drain(0.0)
        with pytest.raises(ModelUnavailable, match="being stopped"):
            await ask(engine, [3])
        assert await engine.drain(10.0)
        assert len(await open_one) == 120

    running(FakePlanner(FakeStarter(loads=1)), body, monkeypatch)

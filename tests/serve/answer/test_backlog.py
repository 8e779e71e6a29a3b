"""Requests that would wait too long are refused, and told truly when to come back."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_engine import FakeEngine
from starlette.testclient import TestClient

from ferrule.errors import ConfigError
from ferrule.serve.answer.backlog import Backlog, Place, parse_queue_time
from ferrule.serve.answer.service import Service
from ferrule.serve.app import create_app
from ferrule.serve.http.errors import ApiError
from ferrule.serve.tools.families import AUTO, dialect


@dataclass
class Machine:
    """Computes prompts one after the other, ``speed`` tokens a second, and then an answer in one of ``slots``, for
    ``seconds``; with ``slots`` 0 answers take no time."""

    speed: float
    slots: int = 0
    seconds: float = 0.0
    backlog: Backlog = field(default_factory=Backlog)
    waiting: deque[tuple[Place, float]] = field(default_factory=deque)
    running: list[tuple[float, Place]] = field(default_factory=list)
    now: float = 100.0
    done: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)
    """Predicted and true ones."""

    @property
    def queued(self) -> bool:
        return 0 < self.slots <= len(self.running) + len(self.waiting)

    def come(self, prompt: int) -> None:
        predicted = self.backlog.wait(prompt, 0, queued=self.queued, now=self.now)
        self.waiting.append((self.backlog.enter(prompt, 0, queued=self.queued, now=self.now), predicted))

    def until(self, moment: float) -> None:
        """Begin what can begin by then."""
        while self.waiting:
            place, predicted = self.waiting[0]
            free = max(place.came, self.done)
            if self.slots and len(self.running) >= self.slots:
                free = max(free, self.running[0][0])
            first = free + place.prompt / self.speed
            if first > moment:
                break
            self.waiting.popleft()
            self._end(free)
            self.done = first
            self.backlog.heard(place, first)
            self.waits.append((predicted, first - place.came))
            place.made = 100
            self.running.append((first + self.seconds, place))
            self.running.sort(key=lambda each: each[0])
        self._end(moment)
        self.now = moment

    def _end(self, moment: float) -> None:
        while self.running and self.running[0][0] <= moment:
            at, place = self.running.pop(0)
            self.backlog.leave(place, at)


@pytest.mark.parametrize(("slots", "seconds"), [(0, 0.0), (4, 8.0)])
def test_waits_are_predicted_by_what_they_were(slots: int, seconds: float) -> None:
    machine, chance = Machine(500.0, slots, seconds), random.Random(3)
    for _ in range(120):
        machine.come(chance.choice((50, 300, 1000, 4000) if not slots else (50, 100, 300)))
        machine.until(machine.now + chance.expovariate(1 / (1.6 if slots else 2.5)))
    machine.until(machine.now + 10_000)
    measured = [(predicted, wait) for predicted, wait in machine.waits[20:] if wait > 2]
    assert len(measured) > 20
    errors = sorted(abs(predicted - wait) / wait for predicted, wait in measured)
    assert errors[len(errors) // 2] < 0.25
    assert errors[int(0.9 * len(errors))] < 0.7


def test_who_comes_back_when_told_has_to_wait_no_longer_than_allowed() -> None:
    machine, longest = Machine(200.0), 60.0
    for _ in range(10):
        machine.come(2000)
        machine.until(machine.now + 15)
    for _ in range(12):
        machine.come(2000)
    wait = machine.backlog.wait(0, 0, queued=False, now=machine.now)
    assert wait == pytest.approx(120, rel=0.05)
    retry = math.ceil(wait - longest)
    machine.until(machine.now + retry)
    assert machine.backlog.wait(0, 0, queued=False, now=machine.now) <= longest * 1.02
    left = len(machine.waiting)
    machine.until(machine.now + longest * 1.05)
    assert left > 0
    assert not machine.waiting, "its turn has come"


def test_nothing_is_predicted_of_what_nothing_is_known() -> None:
    backlog = Backlog()
    first = backlog.enter(20, 0, queued=False, now=0.0)
    assert backlog.wait(10_000, 0, queued=False, now=50.0) == 0.0
    backlog.heard(first, 2.0)  # the first one of a cold model
    assert backlog.wait(10_000, 0, queued=False, now=2.0) == 0.0
    assert backlog.wait(100, 0, queued=False, now=2.0) == pytest.approx(10)
    assert backlog.wait(100, 0, queued=True, now=2.0) == 0.0
    backlog.leave(first, 3.0)
    assert not backlog.places


def test_only_those_of_the_same_priority_or_before_are_ahead() -> None:
    backlog = Backlog()
    backlog.heard(done := backlog.enter(1000, 0, queued=False, now=0.0), 1.0)
    backlog.leave(done, 1.0)
    for priority in (-1, 0, 0, 3):
        backlog.enter(500, priority, queued=False, now=1.0)
    assert [backlog.waiting(priority) for priority in (-2, -1, 0, 3)] == [0, 1, 3, 4]
    assert backlog.wait(0, -2, queued=False, now=1.0) == 0.0
    assert backlog.wait(0, 0, queued=False, now=1.0) == pytest.approx(1.5)


def test_times_of_the_queue_are_read() -> None:
    assert [parse_queue_time(text) for text in ("off", "90", "10min")] == [None, 90, 600]
    for bad in ("0", "long"):
        with pytest.raises(ConfigError):
            parse_queue_time(bad)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sequences are ahead, which take 95.2 s, and each token of a prompt 0.1 s."""
    monkeypatch.setattr(Backlog, "waiting", lambda *_: 3)
    monkeypatch.setattr(Backlog, "wait", lambda _, prompt, priority, **__: 95.2 + 0.1 * prompt)


@pytest.mark.usefixtures("ahead")
def test_requests_that_would_wait_too_long_are_refused_by_every_api() -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    engine = FakeEngine()
    said = "3 sequences are ahead of this request, which take about 95 s, more than the 60 s"
    with TestClient(create_app(engine, api_key=None, max_queue_seconds=60), base_url="http://127.0.0.1") as client:
        for path, body, told in (
            ("/v1/chat/completions", chat, ("error", "message")),
            ("/v1/completions", {"prompt": "a", "stream": True}, ("error", "message")),
            ("/v1/responses", {"input": "a"}, ("error", "message")),
            ("/v1/messages", {"model": engine.name, **chat}, ("error", "message")),
            ("/api/chat", {"model": engine.name, "messages": chat["messages"]}, ("error",)),
        ):
            answer = client.post(path, json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "36"), path
            message: Any = answer.json()
            for key in told:
                message = message[key]
            assert message.startswith(said)
    assert not engine.calls
    with TestClient(create_app(engine, api_key=None), base_url="http://127.0.0.1") as client:
        assert client.post("/v1/chat/completions", json=chat).is_success
        late = client.post("/v1/completions", json={"prompt": [5] * 20, "queue_timeout": 30})
        assert (late.status_code, late.json()["error"]["code"]) == (429, "queue_timeout")
        assert 67 <= int(late.headers["retry-after"]) <= 68  # 95.2 and 2 for the prompt, but 30
        assert client.post("/v1/completions", json={"prompt": [5] * 20, "queue_timeout": 99}).is_success


def test_a_full_server_says_when_a_place_is_free() -> None:
    """By the time between ends of answers."""
    engine = FakeEngine()
    service = Service(engine, dialect(engine.tokenizer.chat_template, AUTO), max_sequences=2)
    places = [service.backlog.enter(10, 0, queued=False, now=0.0) for _ in range(4)]
    for at, place in enumerate(places):
        service.backlog.heard(place, 1.0)
        service.backlog.leave(place, 7.0 * (at + 1))
    with service.admit(2), pytest.raises(ApiError, match="2 sequences are being served") as refused, service.admit(2):
        pass
    assert refused.value.retry_after == 14

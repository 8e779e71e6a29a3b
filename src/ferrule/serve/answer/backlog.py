"""Backlog of a model: what is ahead of a request, and how long that will take, by what it took others. Pure.

What a request waits for, until its first token, are the prompts of those that have not begun, and its own; where places
or memory are taken, their answers, too, for they have to end first. The rate at which that is worked off is measured by
each request that begins: tokens that were ahead of it when it came, and seconds that it took. So it has in it what
cannot be seen from here: batches, prefixes that are known, stages, answers beside prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ferrule.errors import ConfigError
from ferrule.units import parse_seconds

MAX_QUEUE_TIME = "10min"
"""After which clients give up by default (OpenAI's and Anthropic's)."""
_KEPT = 0.9
"""What is left of measurements with each new one."""
_EVIDENCE = 1 / 8
"""Of the tokens that are ahead so many must have been measured, or nothing is predicted."""


def parse_queue_time(text: str) -> float | None:
    """Seconds by ``--max-queue-time``; None for ``off``. Raises `ConfigError`."""
    if text == "off":
        return None
    seconds = parse_seconds(text)
    if not seconds:
        raise ConfigError(f"--max-queue-time {text}: nothing would be taken; give off for no limit")
    return seconds


@dataclass
class Mean:
    """Sums of which the newest parts count most."""

    amount: float = 0.0
    of: float = 0.0

    def add(self, amount: float, of: float) -> None:
        self.amount, self.of = _KEPT * self.amount + amount, _KEPT * self.of + of

    @property
    def value(self) -> float:
        """0 where nothing was measured."""
        return self.amount / self.of if self.of > 0 else 0.0


@dataclass(eq=False)
class Place:
    """A sequence that is served. ``prompt``: its tokens; ``ahead``: tokens before its first one when it ``came``, with
    those of answers where it was ``queued``. ``made``: tokens of its answer."""

    prompt: int
    priority: int
    came: float
    ahead: float
    queued: bool
    made: int = 0


@dataclass
class Backlog:
    """Sequences that are served; times are of a clock that only runs forward."""

    places: list[Place] = field(default_factory=list)
    answers: Mean = field(default_factory=Mean)
    """Tokens of an answer."""
    ends: Mean = field(default_factory=Mean)
    """Seconds between two ends of answers, while others are being made."""
    _rates: dict[bool, Mean] = field(default_factory=lambda: {False: Mean(), True: Mean()})
    """Tokens a second, with answers and without."""
    _progress: float = 0.0
    _ended: float | None = None

    def wait(self, prompt: int, priority: int, *, queued: bool, now: float) -> float:
        """Seconds until the first token of a request that comes ``now``, after a ``prompt``; with 0 until its turn. 0
        where too little is known. ``queued``: places or memory are taken."""
        rate, others = self._rates[queued], self._ahead(priority, queued, now)
        tokens = others + prompt
        if rate.of <= 0 or rate.amount < _EVIDENCE * tokens:
            return 0.0
        return tokens / rate.value

    def waiting(self, priority: int) -> int:
        """Sequences that have not begun, and come before one of ``priority``."""
        return sum(not each.made and each.priority <= priority for each in self.places)

    def enter(self, prompt: int, priority: int, *, queued: bool, now: float) -> Place:
        if all(each.made for each in self.places):
            self._progress = now
        ahead = self._ahead(priority, queued, now) + prompt
        place = Place(prompt, priority, now, ahead, queued)
        self.places.append(place)
        return place

    def heard(self, place: Place, now: float) -> None:
        """A token of it has come."""
        place.made += 1
        if place.made == 1:
            self._rates[place.queued].add(place.ahead, max(now - place.came, 1e-6))
            self._progress = now

    def leave(self, place: Place, now: float) -> None:
        """It has ended, or its client has left."""
        self.places.remove(place)
        if place.made:
            self.answers.add(place.made, 1)
            if self._ended is not None:
                self.ends.add(now - self._ended, 1)
            self._ended = now if self.places else None

    def _ahead(self, priority: int, queued: bool, now: float) -> float:
        """Tokens that come before those of a new request. What was worked off since one has begun is not among them."""
        answer = self.answers.value if queued else 0.0
        before = [each for each in self.places if not each.made and each.priority <= priority]
        tokens = sum(each.prompt + answer for each in before)
        return max(0.0, tokens - self._rates[queued].value * (now - self._progress)) if before else 0.0

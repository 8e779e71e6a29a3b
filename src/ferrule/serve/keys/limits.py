"""Limits of one API key: token buckets for requests and tokens, and a count of requests at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

MINUTE = 60.0


class Bucket:
    """Token bucket that holds what one minute may take and is refilled at that rate. It may owe: what a request has
    taken is known only afterwards. Times are in seconds, of any clock that only goes forward."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / MINUTE)
        self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount

    def seconds_until(self, level: float, now: float) -> float:
        """Until it holds ``level``, if nothing is taken meanwhile."""
        return max(0.0, (level - self.level(now)) * MINUTE / self.per_minute)


@dataclass(frozen=True)
class Limits:
    """None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None


@dataclass(frozen=True)
class Refusal:
    """``seconds``: after which the next request may be taken."""

    message: str
    seconds: float


class Limiter:
    """Use that is made of one key, against its ``limits``."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self._running = 0
        self._requests = None if limits.requests_per_minute is None else Bucket(limits.requests_per_minute, now)
        self._tokens = None if limits.tokens_per_minute is None else Bucket(limits.tokens_per_minute, now)

    def begin(self, now: float) -> Refusal | None:
        """Take one request, for which `end` is to be called; or say why not, and take nothing."""
        most = self.limits.concurrent
        if most is not None and self._running >= most:
            return Refusal(f"{self._running} requests of this key are being answered, of at most {most}", 1.0)
        if self._tokens is not None and self._tokens.level(now) < 1:
            per_minute = self.limits.tokens_per_minute
            return Refusal(f"this key may use {per_minute} tokens in a minute", self._tokens.seconds_until(1, now))
        if self._requests is not None:
            if self._requests.level(now) < 1:
                per_minute, wait = self.limits.requests_per_minute, self._requests.seconds_until(1, now)
                return Refusal(f"this key may send {per_minute} requests in a minute", wait)
            self._requests.take(1, now)
        self._running += 1
        return None

    def end(self) -> None:
        self._running -= 1

    def use(self, tokens: int, now: float) -> None:
        if self._tokens is not None:
            self._tokens.take(tokens, now)

    def headers(self, now: float) -> dict[str, str]:
        """What is left, by OpenAI's names. ``reset``: until the whole limit is there again."""
        found = {}
        for what, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{what}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(bucket.level(now))))
                found[f"x-ratelimit-reset-{what}"] = f"{bucket.seconds_until(bucket.per_minute, now):.3f}s"
        return found

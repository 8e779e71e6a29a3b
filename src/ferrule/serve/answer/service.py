"""Service of one model: what the endpoints share of it, and admission of requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Protocol

from ferrule.engine import Engine, Token
from ferrule.serve.answer.backlog import Backlog, Place
from ferrule.serve.answer.prompt import TokenizerPool
from ferrule.serve.answer.sequences import Job, LateError, QueueTimeoutError
from ferrule.serve.answer.text import Vocabulary
from ferrule.serve.http.errors import ApiError
from ferrule.serve.images.layout import Layout, layout_of
from ferrule.serve.structured.grammars import Grammars
from ferrule.serve.tools.families import Dialect

MAX_SEQUENCES = 256
"""Sequences that may be running or waiting at once over all requests, for each replica that is ready; beyond that
clients are asked to come back."""

PING_SECONDS = 15.0
"""Seconds of silence in a stream after which a sign of life is sent: clients and proxies give up after 30 to 60."""

IMAGE_READERS = 2
"""Requests whose images are decoded and prepared at once; others wait."""


class Tenure(Protocol):
    """How long a model that is loaded on demand stays in memory."""

    def keep(self, seconds: float) -> None:
        """Unload it after so many seconds without requests; 0: after the present ones; less: never."""
        ...

    def left(self) -> float | None:
        """Seconds until it is unloaded if no request comes; None: it stays."""
        ...


class Service:
    """Service that the endpoints of one app share: the engine, the tokenizers, and admission of requests.
    ``dialect``: how the model writes reasoning and tool calls."""

    def __init__(self, engine: Engine, dialect: Dialect, *, max_sequences: int = MAX_SEQUENCES) -> None:
        self.engine = engine
        self.dialect = dialect
        self.vocabulary = Vocabulary(engine.tokenizer)
        self.grammars = Grammars(engine)
        self.reading = TokenizerPool()
        self.seeing = asyncio.Semaphore(IMAGE_READERS)
        self.closing = asyncio.Event()
        self.ping_seconds = PING_SECONDS
        self.tenure: Tenure | None = None
        """None: the model stays as long as the server."""
        self._max_sequences = max_sequences
        self._sequences = 0
        self.backlog = Backlog()

    @cached_property
    def layout(self) -> Layout | None:
        """How the model's template takes images; it is rendered for that, when the first chat comes."""
        return layout_of(self.engine)

    def close(self) -> None:
        """End every answer that is being sent, and refuse new ones."""
        self.closing.set()
        self.reading.close()

    @contextmanager
    def admit(self, sequences: int) -> Iterator[None]:
        """Hold places for ``sequences``. Raises `ApiError` 503 when the engine does not run, 429 when it is busy.

        While ranks are being restarted the engine itself says how long requests may wait.
        """
        self._check(sequences)
        self._sequences += sequences
        try:
            yield
        finally:
            self._sequences -= sequences

    @contextmanager
    def serving(self, jobs: Sequence[Job], longest: float | None) -> Iterator[list[Job]]:
        """As `admit`, for ``jobs``, which are followed. Raises `ApiError` 429, too, where what is ahead of them takes
        more than ``longest`` seconds, or more than they want to wait."""
        with self.admit(len(jobs)):
            now, queued = time.monotonic(), self.engine.health().waiting > 0
            self._check_wait(jobs[0], longest, queued, now)
            places = [self.backlog.enter(len(job.prompt), job.priority, queued=queued, now=now) for job in jobs]
            try:
                yield [job.followed(partial(self._heard, place)) for job, place in zip(jobs, places, strict=True)]
            finally:
                for place in places:
                    self.backlog.leave(place, time.monotonic())

    @contextmanager
    def in_time(self, job: Job) -> Iterator[None]:
        """Raises `ApiError` 429 where the first token of ``job`` does not come in time."""
        try:
            yield
        except LateError:
            queued = self.engine.health().waiting > 0
            wait = self.backlog.wait(0, job.priority, queued=queued, now=time.monotonic())  # of which it still is one
            raise QueueTimeoutError(wait, job.asked.timeout or 0.0) from None

    def _heard(self, place: Place, _: Token) -> None:
        self.backlog.heard(place, time.monotonic())

    def _check_wait(self, job: Job, longest: float | None, queued: bool, now: float) -> None:
        ahead = self.backlog.waiting(job.priority)
        if not ahead:
            return
        turn = self.backlog.wait(0, job.priority, queued=queued, now=now)
        if longest is not None and turn > longest:
            raise ApiError(
                429,
                f"{ahead} sequences are ahead of this request, which take about {turn:.0f} s, more than the "
                f"{longest:g} s that requests may wait here (--max-queue-time)",
                code="too_many_requests",
                retry_after=math.ceil(turn - longest),
            )
        first = self.backlog.wait(len(job.prompt), job.priority, queued=queued, now=now)
        if job.begin_by is not None and now + first > job.begin_by:
            raise QueueTimeoutError(first, job.begin_by - now)

    def _check(self, sequences: int) -> None:
        health = self.engine.health()
        if health.state == "failed":
            raise ApiError(503, f"the model has failed: {health.error}", code="engine_error")
        if health.state in ("loading", "closed"):
            raise ApiError(503, f"the model is {health.state}", code="not_ready", retry_after=1)
        if sequences > self._max_sequences:
            raise ApiError(400, f"{sequences} sequences in one request; at most {self._max_sequences}", param="n")
        most = self._max_sequences * max(1, sum(each.state == "ready" for each in health.replicas))
        if self._sequences + sequences > most:
            raise ApiError(
                429,
                f"{self._sequences} sequences are being served, of at most {most}; try again later",
                code="too_many_requests",
                retry_after=max(1, math.ceil(self.backlog.ends.value * (self._sequences + sequences - most))),
            )

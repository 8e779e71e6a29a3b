"""Mixed load of a server whose right answers are known: short and long prompts, prompts that begin alike, text that
repeats itself, priorities, streams, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Any

import httpx

ANSWER_SECONDS = 300.0
"""Of a request, with whatever faults meanwhile: more means that it is lost."""
LEAVES = 0.1
"""Part of the requests whose clients leave after a few tokens."""
PRIORITIES = (-5, 0, 0, 0, 3)


class Ended(Enum):
    LEFT = auto()
    REFUSED = auto()


@dataclass(frozen=True)
class Question:
    """``tokens``: of its answer. ``apart``: log-probability by which each token of the answer is likelier than the next
    best, at least."""

    prompt: tuple[int, ...]
    tokens: int
    answer: str = ""
    apart: float = 0.0

    def body(self, **fields: Any) -> dict[str, Any]:
        told = {"prompt": list(self.prompt), "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
        return {**told, **fields}


def questions(vocabulary: int, number: int) -> list[Question]:
    """Those of seed 0: all servers are asked the same ones."""
    chooser = random.Random(0)

    def words(length: int) -> tuple[int, ...]:
        return tuple(chooser.randrange(3, vocabulary) for _ in range(length))

    shared, found = words(200), []
    for place in range(number):
        text = words(8)
        kinds = (words(5), words(40), words(300), shared + words(20), (text * 8)[:60])
        found.append(Question(kinds[place % len(kinds)], chooser.choice([12, 24, 40])))
    return found


async def answered(client: httpx.AsyncClient, asked: Iterable[Question]) -> list[Question]:
    """``asked``, one after the other, with what a server that is left in peace answers."""
    found = []
    for each in asked:
        told = await client.post("/v1/completions", json=each.body(logprobs=2))
        told.raise_for_status()
        choice = told.json()["choices"][0]
        tops = [sorted(top.values()) for top in choice["logprobs"]["top_logprobs"]]
        apart = min(top[-1] - top[-2] if len(top) > 1 else 0.0 for top in tops)  # two of one text cannot be told apart
        found.append(Question(each.prompt, each.tokens, choice["text"], apart))
    return found


@dataclass
class Load:
    """``wrong``: what was lost or is wrong. ``done``: answers that were right. ``open``: numbers of those in progress,
    and the tokens that each has got. ``left``: clients that left by themselves. ``refused``: requests that were asked
    again, since the model was not back within a minute (status 503)."""

    client: httpx.AsyncClient
    questions: list[Question]
    seed: int
    wrong: list[str] = field(default_factory=list)
    done: int = 0
    left: int = 0
    refused: int = 0
    open: dict[int, int] = field(default_factory=dict)
    over: bool = False
    leave: set[int] = field(default_factory=set)
    """Those in progress whose clients are to leave now."""
    last_token: float = 0.0
    _numbers: Iterator[int] = field(default_factory=count)

    async def run(self, clients: int) -> None:
        """Until it is ``over``."""
        await asyncio.gather(*map(self._client, range(clients)))

    async def _client(self, number: int) -> None:
        chooser = random.Random(f"{self.seed}/{number}")
        while not self.over:
            question = chooser.choice(self.questions)
            leaves = chooser.randrange(1, question.tokens) if chooser.random() < LEAVES else None
            fields = {"priority": chooser.choice(PRIORITIES), "stream": leaves is not None or chooser.random() < 0.7}
            with self._opened() as mine:
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        while (text := await self._ask(question, fields, leaves, mine)) is Ended.REFUSED:
                            self.refused += 1
                except (httpx.HTTPError, TimeoutError, ValueError) as error:
                    self.wrong.append(f"request {mine} of client {number} was lost: {error!r}")
                    continue
            if text is Ended.LEFT:
                self.left += 1
            elif text == question.answer:
                self.done += 1
            else:
                self.wrong.append(f"request {mine} of client {number}: {text!r} instead of {question.answer!r}")

    @contextmanager
    def _opened(self) -> Iterator[int]:
        number = next(self._numbers)
        self.open[number] = 0
        try:
            yield number
        finally:
            del self.open[number]

    async def _ask(self, question: Question, fields: dict[str, Any], leaves: int | None, number: int) -> str | Ended:
        """Its text, or how else it ended. Raises `ValueError` for what the server says instead of an answer."""
        async with self.client.stream("POST", "/v1/completions", json=question.body(**fields)) as response:
            if response.status_code == 503:
                return Ended.REFUSED
            if response.status_code != 200:
                raise ValueError(f"status {response.status_code}: {(await response.aread()).decode()}")
            if not fields["stream"]:
                return str(json.loads(await response.aread())["choices"][0]["text"])
            text, ended = "", False
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    ended = True
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise ValueError(str(event["error"]))
                text += "".join(choice["text"] for choice in event["choices"])
                self.open[number] += 1
                self.last_token = time.monotonic()
                if number in self.leave or self.open[number] == leaves:
                    return Ended.LEFT
            if not ended:
                raise ValueError(f"the stream ended after {text!r}")
            return text

"""Ranks without processes: the far ends of their sockets, served by the same event loop."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from typing import Any

from ferrule.engine.host.placement import Deployment, Loss, RankStarter
from ferrule.engine.options import RankOptions
from ferrule.errors import FerruleError, ModelUnavailable
from ferrule.model import AttentionSpec, LayerSpec, LayerWeights, ModelSpec, Weights
from ferrule.plan import make_plan

LAYER = LayerSpec(LayerWeights(dense=Weights(1, 1)), AttentionSpec("full", 2, 2, 2, 2))
SPEC = ModelSpec(
    name="tiny",
    architecture="Tiny",
    model_type="tiny",
    decoder=(LAYER,) * 3,
    embedding=Weights(1, 1),
    head=Weights(1, 1),
    final=Weights(),
    tied=False,
    hidden_size=4,
    query_heads=2,
    key_value_heads=2,
    vocab_size=1000,
    max_context=512,
)
POISON = 666
"""A prompt that begins with it kills the driver as soon as it is taken in."""


def rank_options(ranks: int = 1) -> RankOptions:
    return RankOptions("/nowhere", "auto", make_plan(SPEC, pipeline=ranks), 1, 64, 1, 64, ())


def next_token(tokens: Sequence[int], seed: int) -> int:
    """A pretended model: its next token depends on every token so far, on the prompt's length, and on the seed."""
    return (sum(token * (place + 7) for place, token in enumerate(tokens)) * 31 + len(tokens) + seed) % 600


class FakeRanks:
    """`StartedRanks`. The driver answers requests, a token per round of the event loop and request."""

    def __init__(self, options: RankOptions, hosts: Sequence[str] = ("", "", "")) -> None:
        pairs = [socket.socketpair() for _ in range(options.plan.world_size)]
        self.sockets, self.far = [ours for ours, _ in pairs], [far for _, far in pairs]
        self.hosts = hosts[: len(pairs)]
        self.driver = options.plan.driver
        self.codes: list[int | None] = [None] * len(pairs)
        self.stopped = False
        self.replaced: list[list[int]] = []
        self.heirs: list[bool] = []
        """Of those that take the place of others: whether they get ready, or die while they load."""
        self.asked: list[dict[str, Any]] = []
        self.open: dict[int, dict[str, Any]] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Say that all are ready, and answer."""
        if self._task is not None:
            self._task.cancel()
        self.open.clear()
        for rank in range(len(self.far)):
            info = {"rank": rank, "pid": 1, "host": "", "device": "cpu", "transports": "shm"}
            sizes = {"weight_bytes": 1, "base_bytes": 1, "peak_bytes": 1}
            self.tell(rank, event="ready", info=info | sizes, cache_tokens=512)
        self._task = asyncio.create_task(self._answer())

    def tell(self, rank: int, **event: Any) -> None:
        self.say(rank, json.dumps(event).encode() + b"\n")

    def say(self, rank: int, words: bytes) -> None:
        self.far[rank].sendall(words)

    def die(self, rank: int, code: int) -> None:
        self.codes[rank] = code
        self.far[rank].close()
        if rank == self.driver and self._task is not None:
            self._task.cancel()

    def keep(self, rank: int, lost: int | None) -> None:
        """Say that a rank has lost another, or that they disagree, and that it keeps what it has loaded."""
        if rank == self.driver and self._task is not None:
            self._task.cancel()
        kind = "FabricError" if lost is None else "PeerLost"
        self.tell(rank, event="error", type=kind, message=f"rank {lost} is gone", lost=lost, keeps=True)

    async def _answer(self) -> None:
        far, rest, beat = self.far[self.driver], b"", 0.0
        far.setblocking(False)
        while True:
            try:
                *lines, rest = (rest + far.recv(1 << 16)).split(b"\n")
            except BlockingIOError:
                lines = []
            for line in lines:
                message = json.loads(line)
                self.asked.append(message)
                if message["op"] in ("meet", "listen", "join"):
                    continue
                if message["op"] == "cancel":
                    self.open.pop(message["id"], None)
                elif message["op"] == "embed":
                    continue  # the test says its vector
                elif message["op"] == "hold":
                    self.open.clear()  # they compute nothing more
                    self.tell(self.driver, event="held", reason="these are fakes")
                elif message["prompt"][0] == POISON:
                    self.die(self.driver, -11)
                    return
                else:
                    self.open[message["id"]] = message
            self._round()
            if (now := time.monotonic()) > beat + 1:
                beat = now
                for rank in [rank for rank, code in enumerate(self.codes) if code is None]:
                    self.tell(rank, event="alive")
            await asyncio.sleep(0)

    def _round(self) -> None:
        made = []
        for number, request in list(self.open.items()):
            token = next_token(request["prompt"] + request["made"], request["params"]["seed"])
            request["made"].append(token)
            finish = "length" if len(request["made"]) >= request["params"]["max_tokens"] else None
            made.append((number, token, None, (), finish))
            if finish:
                del self.open[number]
        if made:
            self.tell(self.driver, event="tokens", tokens=made)

    def poll(self) -> Sequence[int | None]:
        return tuple(self.codes)

    def log_tail(self, rank: int) -> str:
        return "oh"

    async def end(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.die(rank, -9)
        for rank in [each for each in range(len(self.codes)) if self.codes[each] is None]:
            self.keep(rank, lost=ranks[0])

    def options_of(self, rank: int, options: RankOptions) -> RankOptions:
        return options

    async def replace(self, ranks: Sequence[int], deployment: Deployment) -> Sequence[socket.socket]:
        self.replaced.append([*ranks])
        if not self.heirs:
            raise ModelUnavailable("fake ranks are not replaced")
        for rank in ranks:
            self.sockets[rank], self.far[rank] = socket.socketpair()
            self.codes[rank] = None
            self.tell(rank, event="here")
        if self.heirs.pop(0):
            self.begin()
        else:
            self.die(ranks[0], -11)
        return [self.sockets[rank] for rank in ranks]

    async def stop(self, grace: float) -> None:
        self.close()

    def close(self) -> None:
        self.stopped = True
        if self._task is not None:
            self._task.cancel()
        for end in (*self.sockets, *self.far):
            end.close()


class FakeStarter:
    """``loads``: how many starts get ready; the others die with ``code`` while they load."""

    def __init__(self, loads: int = 0, code: int = -11) -> None:
        self.loads, self.code, self.prepared, self.closed = loads, code, 0, False
        self.started: list[FakeRanks] = []
        self.moving: list[int] | None = None
        self.asked: RankOptions

    def moved(self, other: RankStarter) -> list[int] | None:
        return self.moving

    async def start(self, options: RankOptions) -> FakeRanks:
        self.asked = options
        ranks = FakeRanks(options)
        self.started.append(ranks)
        if len(self.started) <= self.loads:
            ranks.begin()
        elif self.loads:
            ranks.die(0, self.code)
        return ranks

    async def prepare(self, deployment: Deployment) -> bool:
        self.prepared += 1
        return True

    async def close(self) -> None:
        self.closed = True


class FakePlanner:
    """Raises the ``errors`` one after another, but not at the first start; remembers the losses."""

    def __init__(self, starter: FakeStarter, *errors: FerruleError, keeps: bool = False) -> None:
        self.starter, self.errors, self.may_keep = starter, list(errors), keeps
        self.losses: list[Loss | None] = []
        self.options: RankOptions
        self.next: Deployment | None = None
        """A better one, for a model that runs elsewhere."""

    async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
        self.losses.append(loss)
        self.options = options
        if loss is not None and self.errors:
            raise self.errors.pop(0)
        return Deployment(options, self.starter, self.starter)

    async def keeping(self, options: RankOptions, now: Deployment, loss: Loss) -> Deployment | None:
        return now if self.may_keep else None

    async def better(self, options: RankOptions, now: Deployment) -> Deployment | None:
        return None if self.next == now else self.next

    def chosen(self, deployment: Deployment) -> None:
        pass

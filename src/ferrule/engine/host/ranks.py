"""The processes of a model's ranks, as seen by the engine: what they say, and how they end."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from ferrule import errors
from ferrule.engine.host.failure_detector import TICK_SECONDS, FailureDetector
from ferrule.engine.host.placement import Deployment, Loss, RankStarter, StartedRanks
from ferrule.engine.messages import (
    LINE_LIMIT,
    Alive,
    CachesHeld,
    DeviceLost,
    Event,
    Failed,
    Here,
    Hold,
    Meet,
    Order,
    Ready,
    decode_event,
    encode,
)
from ferrule.engine.options import RankOptions
from ferrule.errors import EngineError, FabricError, FerruleError, PeerLost, RendezvousError

SETTLE = 0.25
"""Seconds after the first sign of trouble in which the other ranks' reports are awaited, to find the first cause."""
SETTLE_STEP = 0.02
KEEP_SECONDS = 5.0
"""After a loss, in which all that are left must have said that they keep what they have loaded; longer where that took
long."""
NAMED_SECONDS = 1.0
"""The same for one that others call lost: it may be that they have only lost touch."""


class RankFailure:
    """Failure of the ranks, as far as it is known; picks the cause among the consequences."""

    def __init__(self) -> None:
        self.reported: dict[int, FerruleError] = {}
        self.lost: set[int] = set()
        self._cut_off: set[int] = set()
        self._devices: dict[int, DeviceLost] = {}

    def report(
        self, rank: int, kind: str, message: str, lost: int | None = None, device: DeviceLost | None = None
    ) -> None:
        """``lost``: the rank whose loss this one noticed. ``device``: its own, which it cannot use any more."""
        found = getattr(errors, kind, EngineError)
        plain = isinstance(found, type) and issubclass(found, FerruleError) and found is not PeerLost
        if rank not in self.reported:
            self.reported[rank] = found(message) if plain else FabricError(message)
            if kind in (PeerLost.__name__, RendezvousError.__name__):
                self._cut_off.add(rank)
        if lost is not None:
            self.lost.add(lost)
        if device is not None:
            self._devices.setdefault(rank, device)

    def certain(self, codes: Sequence[int | None]) -> bool:
        """Whether the cause is known already, whatever else is still to come."""
        if any(not isinstance(error, FabricError) for error in self.reported.values()):
            return True
        return any(code is not None and code < 0 for rank, code in enumerate(codes) if rank not in self.reported)

    def loss(self, started: StartedRanks) -> Loss:
        """A rank's own report, else how one died, else a report of having lost a peer."""
        codes, hosts = started.poll(), started.hosts
        ended = {rank for rank, code in enumerate(codes) if code is not None and rank not in self.reported}
        own = {rank: error for rank, error in sorted(self.reported.items()) if not isinstance(error, FabricError)}
        lost = tuple(sorted(ended | own.keys() | self.lost))
        error, crashed = self._cause(codes, sorted(ended), own, started)
        gone = tuple(dict.fromkeys(hosts[rank] for rank in lost if rank < len(hosts)))
        devices = tuple((hosts[rank], device) for rank, device in sorted(self._devices.items()))
        return Loss(error, lost, gone, crashed, devices)

    def _cause(
        self,
        codes: Sequence[int | None],
        ended: Sequence[int],
        own: dict[int, FerruleError],
        started: StartedRanks,
    ) -> tuple[FerruleError, bool]:
        """The error to show, and whether a rank crashed."""
        for rank, error in own.items():
            where = f"{_place(rank, started)}: "
            return (type(error)(f"{where}{error}") if type(error) is EngineError else error), True
        for rank in ended:
            code = codes[rank] or 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            tail = started.log_tail(rank)
            return EngineError(f"{_place(rank, started)} {how}" + (f"; its last words: {tail}" if tail else "")), True
        for rank, error in sorted(self.reported.items()):
            told = RendezvousError if isinstance(error, RendezvousError) else EngineError
            return told(f"{_place(rank, started)}: {error}"), rank not in self._cut_off
        return EngineError("a rank closed its control connection"), True


def _place(rank: int, started: StartedRanks) -> str:
    host = started.hosts[rank]
    return f"rank {rank} on {host}" if host else f"rank {rank}"


class Ranks:
    """The ranks of one deployment: relays their messages, and tells when one is lost. Made by `start`. ``secret``: as
    of `Meet`."""

    def __init__(
        self, started: StartedRanks, options: RankOptions, on_event: Callable[[int, Event], None], secret: str = ""
    ) -> None:
        self._started, self._secret = started, secret
        self._driver = options.plan.driver
        self._on_event = on_event
        self._failure = RankFailure()
        self._lost: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        self._settling: asyncio.Task[None] | None = None
        self._here: set[int] = set()
        self._kept: set[int] = set()
        self._meetings = 0
        self._held: dict[int, CachesHeld] = {}
        self._options = options
        self._detector = FailureDetector(options.plan.world_size, options.meet_seconds)
        self._watching = asyncio.create_task(self._watch(), name="signs of life")
        self._readers: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []  # in rank order; one that is dropped closes its socket

    @classmethod
    async def start(
        cls, starter: RankStarter, options: RankOptions, on_event: Callable[[int, Event], None], secret: str = ""
    ) -> Self:
        """``on_event(rank, event)`` is called for each message of a rank. Raises what the starter raises."""
        ranks = cls(await starter.start(options), options, on_event, secret)
        try:
            for rank, ours in enumerate(ranks._started.sockets):
                await ranks._connect(rank, ours)
        except BaseException:
            await ranks.stop(0)
            raise
        return ranks

    async def lost(self) -> Loss:
        """Wait until a rank is lost, and say why."""
        return await asyncio.shield(self._lost)

    async def left(self, patience: float = 0.0) -> frozenset[int]:
        """After a loss: the ranks that keep what they have loaded. No rank where one neither says so nor ends in
        `KEEP_SECONDS`, or ``patience`` if that is more: something else is wrong then."""
        begun = time.monotonic()
        while True:
            ended = {rank for rank, reader in enumerate(self._readers) if reader.done()}
            kept = self._kept - ended
            silent = set(range(len(self._readers))) - ended - kept - self._failure.reported.keys()
            seconds = time.monotonic() - begun
            if not silent or (silent <= self._failure.lost and seconds >= NAMED_SECONDS):
                return frozenset(kept)
            if seconds >= max(KEEP_SECONDS, patience):
                return frozenset()
            await asyncio.sleep(SETTLE_STEP)

    @property
    def hosts(self) -> Sequence[str]:
        """As of `StartedRanks`."""
        return self._started.hosts

    async def hold(self, leaving: Sequence[int], patience: float) -> dict[int, CachesHeld]:
        """Have all ranks hold what their caches have, by `Hold`. What they say of it; nothing where they do not in
        time. ``patience``: as of `left`."""
        self._held = {}
        self.send(Hold(tuple(leaving)))
        end = time.monotonic() + max(KEEP_SECONDS, patience)
        while time.monotonic() < end and not self._lost.done():
            if len(self._held) == len(self._readers) or any(each.reason for each in self._held.values()):
                return self._held
            await asyncio.sleep(SETTLE_STEP)
        return {}

    async def part(self, moving: Sequence[int], patience: float) -> frozenset[int]:
        """End ranks that are to be elsewhere; returns the others, which keep what they have loaded. No rank where one
        does not. ``patience``: as of `left`."""
        await self._started.end(moving)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(KEEP_SECONDS, patience)):
                await self.lost()
                kept = await self.left(patience)
                return kept if len(kept) + len(moving) == len(self._readers) else frozenset()
        return frozenset()

    async def renew(self, kept: frozenset[int], deployment: Deployment, on_event: Callable[[int, Event], None]) -> None:
        """Go on as ``deployment`` with those that `left` told of, and a new process for each other; all meet anew. A
        loss from now on is another one. Raises `ModelUnavailable`."""
        self._options = options = deployment.options
        gone = [rank for rank in range(len(self._readers)) if rank not in kept]
        self._failure, self._settling = RankFailure(), None
        self._lost = asyncio.get_running_loop().create_future()
        self._on_event, self._here, self._kept = on_event, set(kept), set()
        self._meetings += 1
        for rank in gone:
            self._readers[rank].cancel()
            self._writers[rank].transport.abort()
            self._detector.expect(rank, options.meet_seconds)
        await asyncio.gather(*(self._readers[rank] for rank in gone), return_exceptions=True)
        for rank, ours in zip(gone, await self._started.replace(gone, deployment), strict=True):
            await self._connect(rank, ours)
        if any(self._readers[rank].done() for rank in kept):
            self._find_cause()
        if self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="signs of life")
        if not gone:
            self._meet_all()

    async def _connect(self, rank: int, ours: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        self._writers[rank : rank + 1] = [writer]
        relaying = asyncio.create_task(self._relay(rank, reader), name=f"rank {rank}")
        self._readers[rank : rank + 1] = [relaying]

    def send(self, message: Order) -> None:
        """Send to the driver. Silent when it is gone: its loss is reported by `lost`."""
        self.tell(self._driver, message)

    def tell(self, rank: int, message: Order) -> None:
        """Send to any rank. As `send`."""
        writer = self._writers[rank]
        if not writer.is_closing():
            writer.write(encode(message))

    async def stop(self, grace: float) -> None:
        """End every rank within about ``grace`` seconds; safe to call twice. No event is relayed any more."""
        tasks = [self._watching, *self._readers, *([self._settling] if self._settling else [])]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # also where this is cancelled meanwhile
            for writer in self._writers:
                writer.transport.abort()  # what was not sent has no reader any more
            await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)
            for ours in self._started.sockets[len(self._writers) :]:
                ours.close()
            await self._started.stop(grace)

    async def _relay(self, rank: int, reader: asyncio.StreamReader) -> None:
        try:
            while (line := await reader.readline()).endswith(b"\n"):  # a rank that dies may leave a part of one
                self._detector.heard(rank)
                event = decode_event(line)
                match event:
                    case Alive():
                        continue
                    case Here():
                        self._arrived(rank)
                        continue
                    case Failed():
                        if event.keeps:
                            self._kept.add(rank)
                        self._failure.report(rank, event.type, event.message, event.lost, event.device)
                        self._find_cause()  # its end may take seconds
                        continue
                    case CachesHeld():
                        self._held[rank] = event
                        continue
                    case Ready():
                        self._detector.ready(rank)
                if not self._lost.done():  # else others may have been told of the loss
                    self._on_event(rank, event)
        except ConnectionError:
            pass  # the same as the end of the stream: the rank is gone
        except OSError as error:
            self._failure.report(rank, PeerLost.__name__, f"its host does not answer any more ({error.strerror})", rank)
        except Exception as error:  # noqa: BLE001 - a message that cannot be taken must not leave the model hanging
            told = str(error) if isinstance(error, FerruleError) else repr(error)
            self._failure.report(rank, "EngineError", f"its message could not be taken: {told}")
        self._find_cause()

    def _arrived(self, rank: int) -> None:
        self._here.add(rank)
        if len(self._here) == len(self._started.sockets):
            self._meet_all()

    def _meet_all(self) -> None:
        for rank in range(len(self._writers)):
            options = self._started.options_of(rank, self._options) if self._meetings else None
            self.tell(rank, Meet(self._meetings, options, self._secret))

    async def _watch(self) -> None:
        """Until ranks give no sign of life although their connections stand."""
        silent: dict[int, float] = {}
        last = time.monotonic()
        while not silent:
            await asyncio.sleep(TICK_SECONDS)
            last, before = time.monotonic(), last
            silent = self._detector.tick(last - before)
        for rank, seconds in silent.items():
            self._failure.report(rank, PeerLost.__name__, f"it has given no sign of life for {seconds:.0f} s", rank)
        self._find_cause()

    def _find_cause(self) -> None:
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle(), name="first cause")

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE
        while loop.time() < deadline and not self._failure.certain(self._started.poll()):
            await asyncio.sleep(SETTLE_STEP)
        self._lost.set_result(self._failure.loss(self._started))

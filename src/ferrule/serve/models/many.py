"""Several models behind one address: loaded on demand, and unloaded where others need their memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace

from ferrule.engine import Engine
from ferrule.errors import FerruleError, ModelUnavailable
from ferrule.serve.answer.sending import shutting_down
from ferrule.serve.answer.service import MAX_SEQUENCES, Service
from ferrule.serve.models.leases import until_answered
from ferrule.serve.models.memory import Held, NoRoomError, Room
from ferrule.serve.models.names import Aliases, check_names, names_of, not_served
from ferrule.serve.models.offer import Offer
from ferrule.serve.models.slot import Slot

log = logging.getLogger(__name__)

WAIT_SECONDS = 300.0
"""Seconds that a request waits for its model to be loaded; loading goes on."""
BUSY_SECONDS = 30.0
"""Seconds that loading waits for the requests of models whose memory it needs."""
EXPIRE_SECONDS = 1.0
WAY_SECONDS = 10.0
"""Between two looks at what could be unloaded for a model that waits for memory."""
CLOSE_SECONDS = 5.0


class ManyModels:
    """`Models` of several ``offers``, the first one for requests that name none. At most one is loaded at a time.

    ``clock``: seconds that only run forward. ``tell``: called with a line when a model is loaded or unloaded. Raises
    `ConfigError` where two have one name.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        room: Room,
        *,
        aliases: Aliases | None = None,
        max_sequences: int = MAX_SEQUENCES,
        clock: Callable[[], float] = time.monotonic,
        wait_seconds: float = WAIT_SECONDS,
        busy_seconds: float = BUSY_SECONDS,
        tell: Callable[[str], None] = log.info,
    ) -> None:
        self._slots = [Slot(offer, max_sequences, clock, self._idle) for offer in offers]
        self._room, self._aliases, self._tell, self._clock = room, aliases or Aliases(), tell, clock
        self._wait_seconds, self._busy_seconds = wait_seconds, busy_seconds
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        check_names([offer.name for offer in offers])
        self._aliases.check(self.cards())

    async def start(self) -> None:
        """Load the first model and those that are wanted from the start. Raises what that raises, when those that were
        loaded are closed."""
        try:
            for number, slot in enumerate(self._slots):
                if not number or slot.offer.preload:
                    async with self._turn:
                        await self._bring(slot)
        except BaseException:
            await self.aclose()
            raise
        self._spawn(self._tick())

    def cards(self) -> list[Engine]:
        return [each.engine for slot in self._slots for each in slot.services]

    async def service(self, name: str | None) -> Service:
        slot, at = self._find(name)
        until_answered(slot.take(as_use=True))
        while not slot.runs:
            await self._wait(slot)
        return slot.services[at]

    async def known(self, name: str | None) -> Service:
        slot, at = self._find(name)
        until_answered(slot.take(as_use=False))
        return slot.services[at]

    def parser_of(self, engine: Engine) -> str:
        """Format of the model's tool calls, as `dialect` takes it."""
        return next(slot for slot in self._slots if engine.name in _names(slot)).offer.tool_parser

    def states(self) -> list[tuple[Offer, Engine]]:
        """Each model, and its engine or what stands for it."""
        return [(slot.offer, slot.engine or slot.offer.unloaded) for slot in self._slots]

    def close(self) -> None:
        self._closing = True
        for slot in self._slots:
            slot.services[0].close()

    async def aclose(self) -> None:
        """Unload all. Loading is broken off."""
        self.close()
        loading = [slot.loading for slot in self._slots if slot.loading is not None]
        for task in (*self._tasks, *loading):
            task.cancel()
        await asyncio.gather(*self._tasks, *loading, return_exceptions=True)
        await asyncio.gather(*(self._unload(slot) for slot in self._slots))

    async def expire(self) -> None:
        """Unload the models whose time without requests is over."""
        for slot in self._slots:
            if slot.expired:
                async with self._turn:
                    if slot.expired:
                        self._tell(f"{slot.offer.name} is unloaded: not used any more")
                        await self._unload(slot)

    async def make_way(self) -> None:
        """Unload models for one that was used later, has lost its place (a host, say), and waits for memory."""
        for slot in self._slots:
            if slot.waits and self._clock() >= slot.looked + WAY_SECONDS:
                slot.looked = self._clock()
                try:
                    async with self._turn:
                        await self._make_way(slot)
                except FerruleError as error:
                    log.warning("nothing is unloaded for %s, which waits for memory: %s", slot.offer.name, error)

    async def _make_way(self, slot: Slot) -> None:
        name, need = slot.offer.name, slot.offer.need
        while slot.waits:
            others = [each for each in self._held() if each.name != name]
            if await self._room.shortage(name, need, others) is None:
                return  # it will see so by itself
            later = [each.name for each in others if each.last_used >= slot.last_used]
            held = [replace(each, stays="used later") if each.name in later else each for each in others]
            first = await self._room.first_out(name, need, held)
            if first is None or self._is_busy(first):
                return
            self._tell(f"{first.name} is unloaded: {name} needs its memory to come back")
            await self._unload(self._slot(first.name))

    def _find(self, name: str | None) -> tuple[Slot, int]:
        """The model of this name, and which of its services. Raises `ApiError` 404."""
        if name is None:
            return self._slots[0], 0
        for wanted in (name, self._aliases.meant(name)):
            for exact in (True, False):  # the whole name of one goes before the short name of another
                for slot in self._slots:
                    for at, each in enumerate(slot.known):
                        if wanted == each.engine.name or (not exact and wanted in names_of(each.engine)):
                            return slot, at
        raise not_served(name, self.cards())

    async def _wait(self, slot: Slot) -> None:
        """Until the model is loaded, by a load that requests share. Raises `ModelUnavailable`, `ApiError` 503."""
        if self._closing:
            raise shutting_down()
        if slot.engine is not None and slot.loading is None:
            reason = f"it failed: {slot.engine.health().error}"
            slot.failed(reason)
            slot.loading = self._spawn(self._drop(slot))
        slot.check_pause()
        if slot.loading is None:
            slot.loading = self._spawn(self._load(slot))
        loading = slot.loading
        await asyncio.wait([loading], timeout=self._wait_seconds)
        if not loading.done():
            raise ModelUnavailable(
                f"{slot.offer.name!r} is still loading after {self._wait_seconds:g} s; ask again", retry_after=10
            )
        if loading.cancelled():
            raise shutting_down()
        if (error := loading.exception()) is not None:
            if isinstance(error, NoRoomError):  # one of its own for each who waits
                raise NoRoomError(error.shortage, error.held)
            slot.check_pause()
            raise error

    async def _load(self, slot: Slot) -> None:
        """Raises what `_bring` raises; failures other than of room are remembered."""
        try:
            async with self._turn:
                await self._bring(slot)
        except NoRoomError:
            raise
        except FerruleError as error:
            slot.failed(str(error))
            log.warning("%s could not be loaded: %s", slot.offer.name, error)
            raise
        except Exception:
            slot.failed("internal error; the server's log has the details")
            log.exception("%s could not be loaded", slot.offer.name)
            raise
        finally:
            slot.loading = None

    async def _bring(self, slot: Slot) -> None:
        """Load a model, after making room. To be called in turn."""
        await self._make_room(slot)
        begun = time.monotonic()
        slot.offer.unloaded.state = "loading"
        try:
            slot.loaded(await slot.offer.load())
        finally:
            if slot.offer.unloaded.state == "loading":
                slot.offer.unloaded.state = "unloaded"
        self._tell(f"{slot.offer.name} is loaded ({time.monotonic() - begun:.1f} s)")

    async def _make_room(self, slot: Slot) -> None:
        """Unload others until there is room. Raises `NoRoomError`."""
        name, need = slot.offer.name, slot.offer.need
        deadline = time.monotonic() + self._busy_seconds
        while True:
            self._released.clear()
            held = self._held()
            shortage = await self._room.shortage(name, need, held)
            if shortage is None:
                return
            first = await self._room.first_out(name, need, held)
            if first is not None and self._is_busy(first):  # a request came meanwhile
                continue
            if first is not None:
                self._tell(f"{first.name} is unloaded: {name} needs its memory")
                await self._unload(self._slot(first.name))
                continue
            left = deadline - time.monotonic()
            if left <= 0 or await self._room.first_out(name, need, held, also_busy=True) is None:
                raise NoRoomError(shortage, held)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._released.wait(), left)

    def _held(self) -> list[Held]:
        return [slot.held() for slot in self._slots if slot.engine is not None]

    def _slot(self, name: str) -> Slot:
        return next(each for each in self._slots if each.offer.name == name)

    def _is_busy(self, held: Held) -> bool:
        return self._slot(held.name).held().stays is not None

    async def _drop(self, slot: Slot) -> None:
        """Take a model out of memory that has failed; requests for it are refused for a while."""
        try:
            async with self._turn:
                await self._unload(slot)
        finally:
            slot.loading = None

    async def _unload(self, slot: Slot) -> None:
        engine = slot.unloaded()
        if engine is None:
            return
        try:
            await asyncio.wait_for(engine.close(), CLOSE_SECONDS)
        except TimeoutError:
            log.error("%s did not close within %s s; processes of it may be left", slot.offer.name, CLOSE_SECONDS)
        except Exception:
            log.exception("%s did not close properly; processes of it may be left", slot.offer.name)

    def _idle(self, slot: Slot) -> None:
        self._released.set()
        if slot.expired and not self._closing:  # it was to be unloaded at once
            self._spawn(self.expire())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            await self.expire()
            await self.make_way()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # was told to those who wait, if any do


def _names(slot: Slot) -> list[str]:
    return [each.engine.name for each in slot.known]

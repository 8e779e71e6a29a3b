"""State of one of several models: in memory or not, who uses it, and how loading it has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ferrule.engine import Engine
from ferrule.errors import ModelUnavailable
from ferrule.serve.answer.adapters import with_adapters
from ferrule.serve.answer.service import Service
from ferrule.serve.models.memory import Held
from ferrule.serve.models.offer import Offer
from ferrule.serve.tools.families import dialect

PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0
"""After a load that failed requests are refused for so long; each further time twice as long."""


class Slot:
    """State of the model ``offer``. It is the `Tenure` of its services. ``clock``: seconds that only run forward.
    ``on_idle``: called when nobody uses it any more."""

    def __init__(
        self, offer: Offer, max_sequences: int, clock: Callable[[], float], on_idle: Callable[[Slot], None]
    ) -> None:
        self.offer = offer
        self.engine: Engine | None = None
        self.loading: asyncio.Task[None] | None = None
        self.users = 0
        self.ttl = offer.ttl
        self.last_used = clock()
        self.looked = 0.0
        """When it was last looked at what could be unloaded for it."""
        self._max_sequences, self._clock, self._on_idle = max_sequences, clock, on_idle
        self._failures, self._failed_until = 0, 0.0
        self.known = self.services = self._services(offer.unloaded)

    def _services(self, engine: Engine) -> tuple[Service, ...]:
        tokenizer = engine.tokenizer
        speaks = dialect(tokenizer.chat_template, self.offer.tool_parser, tokenizer.response_template)
        service = Service(engine, speaks, max_sequences=self._max_sequences)
        service.tenure = self
        return with_adapters(service)

    @property
    def runs(self) -> bool:
        """Whether it is in memory and can be used."""
        return self.engine is not None and self.engine.health().state != "failed"

    @property
    def waits(self) -> bool:
        """Whether it has lost its place and cannot be held now; it comes back by itself."""
        return self.engine is not None and self.engine.health().state == "waiting"

    def loaded(self, engine: Engine) -> None:
        self.engine, self.services = engine, self._services(engine)
        self.ttl, self._failures, self._failed_until = self.offer.ttl, 0, 0.0
        self.offer.unloaded.state, self.offer.unloaded.error = "unloaded", None
        self.last_used = self._clock()

    def unloaded(self) -> Engine | None:
        """The engine, which is to be closed and not used any more; its answers end."""
        engine, self.engine = self.engine, None
        if engine is not None:
            self.services[0].close()
            self.services = self.known
        return engine

    def failed(self, reason: str) -> None:
        """It could not be loaded, or has failed for good."""
        self._failures += 1
        pause = min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2 ** (self._failures - 1))
        self._failed_until = self._clock() + pause
        self.offer.unloaded.state, self.offer.unloaded.error = "failed", reason

    def check_pause(self) -> None:
        """Raise `ModelUnavailable` within the pause after a failure."""
        left = self._failed_until - self._clock()
        if left > 0:
            raise ModelUnavailable(
                f"{self.offer.name!r} could not be loaded ({self.offer.unloaded.error}); "
                f"the next request after {left:.0f} s tries again",
                retry_after=max(1, round(left)),
            )

    def take(self, *, as_use: bool) -> Callable[[], None]:
        """Use it until the returned function is called. ``as_use``: that counts for what was used least recently."""
        self.users += 1
        if as_use:
            self.last_used = self._clock()

        def release() -> None:
            self.users -= 1
            if as_use:
                self.last_used = self._clock()
            if not self.users:
                self._on_idle(self)

        return release

    def held(self) -> Held:
        used = f"in use by {self.users} request{'' if self.users == 1 else 's'}" if self.users else None
        stays = "pinned" if self.offer.pin else used
        return Held(self.offer.name, self.offer.need, self.last_used, stays, self.users > 0 and not self.offer.pin)

    def keep(self, seconds: float) -> None:
        """See `Tenure.keep`. A pinned model stays."""
        self.ttl = None if seconds < 0 else seconds

    def left(self) -> float | None:
        """See `Tenure.left`."""
        if self.offer.pin or self.ttl is None:
            return None
        return max(0.0, self.ttl if self.users else self.ttl - (self._clock() - self.last_used))

    @property
    def expired(self) -> bool:
        return self.engine is not None and not self.users and self.left() == 0

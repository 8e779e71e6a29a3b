"""Exchange: one request and its answer, as far as they are counted: who asks which model, tokens and times.

It is found by context, since what counts tokens is far from what reads the request's header.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import Scope

from ferrule.serve.keys.keyring import Caller

_CURRENT: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


@dataclass
class Exchange:
    """``model``: name of the one that answers, once it is known. Times are of the monotonic clock.

    It is in ``scope["state"]["exchange"]`` (``request.state.exchange``) of each request.
    """

    caller: Caller = field(default_factory=Caller)
    model: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    begun: float = field(default_factory=time.monotonic)
    first_token: float | None = None

    def count(self, *, prompt: int = 0, completion: int = 0) -> None:
        """Tokens that have been taken since the last call; the limit of the caller's key knows at once."""
        now = time.monotonic()
        if completion and self.first_token is None:
            self.first_token = now
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        if self.caller.limiter is not None:
            self.caller.limiter.use(prompt + completion, now)


def exchange_of(scope: Scope) -> Exchange:
    """Of the request of ``scope``; the first call makes it, and the current one of this task."""
    exchange: Exchange = scope.setdefault("state", {}).setdefault("exchange", Exchange())
    _CURRENT.set(exchange)
    return exchange


def current_exchange() -> Exchange:
    """Of the request that this task answers; one that nobody sees where it answers none."""
    return _CURRENT.get() or Exchange()

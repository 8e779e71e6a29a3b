"""Models of an address as one caller sees them: those that its key may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ferrule.engine import Engine
from ferrule.serve.answer.service import Service
from ferrule.serve.http.errors import ApiError
from ferrule.serve.http.exchange import current_exchange
from ferrule.serve.models import Models, names_of
from ferrule.serve.models.memory import NoRoomError


class AllowedModels:
    """``models``, for the key of the request that is being answered. Others are not there (404), as with OpenAI, and
    no error has their names."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def cards(self) -> list[Engine]:
        allowed = current_exchange().caller.models
        return [each for each in self._models.cards() if allowed is None or _is_allowed(allowed, each)]

    async def service(self, name: str | None) -> Service:
        return await self._checked(self._models.service, name)

    async def known(self, name: str | None) -> Service:
        return await self._checked(self._models.known, name)

    async def _checked(self, find: Callable[[str | None], Awaitable[Service]], name: str | None) -> Service:
        exchange = current_exchange()
        allowed = exchange.caller.models
        service = await (find(name) if allowed is None else self._found(find, name, allowed))
        exchange.model = service.engine.name
        return service

    async def _found(
        self, find: Callable[[str | None], Awaitable[Service]], name: str | None, allowed: Sequence[str]
    ) -> Service:
        if name is None:
            name = next((each.name for each in self.cards()), None)
        if name is None or not any(_may_mean(name, each) for each in allowed):  # before it is loaded
            raise _unknown(name, allowed)
        try:
            service = await find(name)
        except NoRoomError as error:
            raise error.told(lambda held: any(_may_mean(held, each) for each in allowed)) from None
        except ApiError as error:
            raise _unknown(name, allowed) if error.status == 404 else error from None
        if name not in allowed and not _is_allowed(allowed, service.engine):
            raise _unknown(name, allowed)
        return service

    def close(self) -> None:
        self._models.close()


def refuse_limited(what: str) -> None:
    """Raise `ApiError` 403 for a key that is made for some models only: what is on the disk is everybody's.

    ``what``: what it may not do with models."""
    caller = current_exchange().caller
    if caller.models is not None:
        raise ApiError(403, f"the key {caller.name!r} may only use models, not {what}", code="forbidden")


def _is_allowed(allowed: Sequence[str], engine: Engine) -> bool:
    return any(name in allowed for name in names_of(engine))


def _may_mean(name: str, allowed: str) -> bool:
    """With and without the owner's name."""
    return name == allowed or name == allowed.rpartition("/")[2] or name.rpartition("/")[2] == allowed


def _unknown(name: str | None, allowed: Sequence[str]) -> ApiError:
    what = f"the model {name!r} is not served here, or not for this key" if name else "no model is for this key"
    own = ", ".join(map(repr, allowed))
    return ApiError(404, f"{what}, which is for {own}", code="model_not_found", param="model")

"""Models that one address serves, by the names that requests give."""

from __future__ import annotations

from typing import Protocol

from ferrule.engine import Engine
from ferrule.serve.answer.adapters import AdapterEngine, with_adapters
from ferrule.serve.answer.service import Service
from ferrule.serve.http.errors import ApiError


class Models(Protocol):
    """Models behind one address."""

    def cards(self) -> list[Engine]:
        """Those that clients are told of."""
        ...

    async def service(self, name: str | None) -> Service:
        """Service of the model that a request names; None: the only or first one. Raises `ApiError` 404 where there is
        no such model, 503 where it cannot be had now."""
        ...

    def close(self) -> None:
        """End every answer."""
        ...


class OneModel:
    """The only model of an address, and as its adapters change it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._all = with_adapters(service)

    def cards(self) -> list[Engine]:
        return [each.engine for each in self._all]

    async def service(self, name: str | None) -> Service:
        named = (each for each in self._all if name is None or name in names_of(each.engine))
        found = next(named, None)
        if found is None:
            adapted = "".join(f", {each.engine.name!r}" for each in self._all[1:])
            served = f"{self._service.engine.name!r}{adapted} {'are' if adapted else 'is'}"
            raise ApiError(
                404, f"the model {name!r} is not served here; {served}", code="model_not_found", param="model"
            )
        return found

    def close(self) -> None:
        self._service.close()


def names_of(engine: Engine) -> tuple[str, ...]:
    """Names that the model may be called by: its name, and that without the owner (``llama`` for ``meta/llama``); of
    one with an adapter (``meta/llama:poet``) the adapter's, too."""
    own = (engine.adapter,) if isinstance(engine, AdapterEngine) else ()
    return tuple(dict.fromkeys((engine.name, engine.name.rstrip("/").rpartition("/")[2], *own)))

"""Models that one address serves, by the names that requests give."""

from __future__ import annotations

from typing import Protocol

from ferrule.engine import Engine
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
    """The only model of an address."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def cards(self) -> list[Engine]:
        return [self._service.engine]

    async def service(self, name: str | None) -> Service:
        check_model(self._service.engine, name)
        return self._service

    def close(self) -> None:
        self._service.close()


def names_of(engine: Engine) -> tuple[str, ...]:
    """Names that the model may be called by: its name, and that without the owner (``llama`` for ``meta/llama``)."""
    return tuple(dict.fromkeys((engine.name, engine.name.rstrip("/").rpartition("/")[2])))


def check_model(engine: Engine, name: str | None) -> None:
    """Raise `ApiError` 404 unless ``name`` is the served model. None: the served model."""
    if name is not None and name not in names_of(engine):
        raise ApiError(
            404, f"the model {name!r} is not served here; {engine.name!r} is", code="model_not_found", param="model"
        )

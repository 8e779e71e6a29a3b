"""Interface of the models behind one address."""

from __future__ import annotations

from typing import Protocol

from ferrule.engine import Engine
from ferrule.serve.answer.service import Service


class Models(Protocol):
    """Models behind one address."""

    def cards(self) -> list[Engine]:
        """Those that clients are told of; one that is not in memory as an `Unloaded`."""
        ...

    async def service(self, name: str | None) -> Service:
        """Service of the model that a request names; None: the only or first one. It is loaded if need be, and stays
        until the request has been answered. Raises `ApiError` 404 where there is no such model, and an error with
        status 503 where it cannot be had now."""
        ...

    async def known(self, name: str | None) -> Service:
        """The same as far as it is known without loading the model: its tokenizer, its sizes, what it can do. Raises
        `ApiError` 404."""
        ...

    def close(self) -> None:
        """End every answer."""
        ...

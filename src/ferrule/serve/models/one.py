"""The only model of an address."""

from __future__ import annotations

from ferrule.engine import Engine
from ferrule.serve.answer.adapters import with_adapters
from ferrule.serve.answer.service import Service
from ferrule.serve.models.names import Aliases, names_of, not_served


class OneModel:
    """The only model of an address, and as its adapters change it. Raises `ConfigError` for ``aliases`` of others."""

    def __init__(self, service: Service, aliases: Aliases | None = None) -> None:
        self._service = service
        self._all = with_adapters(service)
        self._aliases = aliases or Aliases()
        self._aliases.check(self.cards())

    def cards(self) -> list[Engine]:
        return [each.engine for each in self._all]

    async def service(self, name: str | None) -> Service:
        found = self._all[0] if name is None else self._named(name)
        if found is None and name is not None and (meant := self._aliases.meant(name)) is not None:
            found = self._named(meant)
        if found is None:
            raise not_served(str(name), self.cards())
        return found

    async def known(self, name: str | None) -> Service:
        return await self.service(name)

    def close(self) -> None:
        self._service.close()

    def _named(self, name: str) -> Service | None:
        return next((each for each in self._all if name in names_of(each.engine)), None)

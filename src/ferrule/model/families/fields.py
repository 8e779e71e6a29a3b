"""Fields of a model's configuration, read one by one with errors that name the field and the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferrule.errors import ConfigError

_REQUIRED: Final = -1
MOST: Final = 1 << 31
"""No count or size in a configuration is larger; what is, is a lie or damage."""


class Fields:
    """A JSON object, where it came from (``file``), and what stands in for fields that it lacks (``defaults``)."""

    def __init__(self, data: object, file: str, defaults: Mapping[str, Any] | None = None) -> None:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{file} holds no JSON object but {type(data).__name__}; is it a model's config.json?")
        self.data: Mapping[str, Any] = data
        self.file = file
        self.defaults = defaults or {}

    def get(self, *names: str) -> tuple[str, Any]:
        """The first of ``names`` that is set, and its value; None where none of them is (or it is null)."""
        for source in (self.data, self.defaults):
            for name in names:
                if source.get(name) is not None:
                    return name, source[name]
        return names[0], None

    def integer(self, *names: str, default: int = _REQUIRED, least: int = 1) -> int:
        """A whole number from ``least`` on. Raises `ConfigError` where it is missing and has no ``default``."""
        value = self.maybe(*names, least=least)
        if value is not None:
            return value
        if default == _REQUIRED:
            raise ConfigError(f"{self.file} lacks {names[0]}; is it the config.json of a language model?")
        return default

    def maybe(self, *names: str, least: int = 1) -> int | None:
        """A whole number from ``least`` on, or None where there is none."""
        name, value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "is not a whole number")
        if not least <= value <= MOST:
            raise self.error(name, f"is not between {least} and {MOST}")
        return value

    def flag(self, *names: str, default: bool) -> bool:
        name, value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "is neither true nor false")
        return value

    def text(self, name: str, default: str = "") -> str:
        _, value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(name, "is no text")
        return value

    def each(self, name: str, count: int) -> list[Any] | None:
        """A list with one entry for each of ``count`` layers, or None where there is none."""
        _, value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(name, "is no list")
        if len(value) < count:
            raise ConfigError(f"{self.file}: {name} has {len(value)} entries for {count} layers")
        return value[:count]

    def within(self, name: str) -> Fields | None:
        """The JSON object in field ``name``."""
        _, value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, "is no JSON object")
        return Fields(value, f"{self.file}: {name}")

    def error(self, name: str, why: str) -> ConfigError:
        _, value = self.get(name)
        return ConfigError(f"{self.file}: {name} is {str(value)[:60]!s}, which {why}")

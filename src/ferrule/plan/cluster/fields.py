"""Tables of a cluster's TOML, read field by field: every error names the file, the table, the field and the cure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ferrule.errors import ConfigError
from ferrule.units import parse_bytes, parse_rate, parse_seconds

MOST = 1e24
"""No number of a machine or cable is larger; what is, is a slip."""
_SHOWN = 60
_EXPONENT = re.compile(r"\s*[0-9.]+[eE][+-]?[0-9]+\s*")


class Table:
    """One table of a file. ``where``: the file and the table, for errors."""

    def __init__(self, data: Mapping[str, Any], where: str, keys: Collection[str]) -> None:
        self.data = data
        self.where = where
        for key in data:
            if key not in keys:
                raise ConfigError(f"{where}: there is no field {shown(key)}; there are {', '.join(keys)}")

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def error(self, key: str, why: str) -> ConfigError:
        return ConfigError(f"{self.where}, {key}: {why}")

    def text(self, key: str, example: str, default: str | None = None) -> str:
        value = self.data.get(key, default)
        if value is None:
            raise ConfigError(f"{self.where}: {key} is missing; write {key} = {example}")
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self.error(key, f"{shown(value)} is no text of one line; write for example {key} = {example}")
        return value

    def flag(self, key: str) -> bool:
        value = self.data.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, f"write true or false, not {shown(value)}")
        return value

    def count(self, key: str, most: int) -> int | None:
        """A whole number from 1 to ``most``; None where there is none."""
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.error(key, f"a whole number from 1 to {most} is needed, not {shown(value)}")
        return value

    def number(self, key: str, unit: Unit, *, least: float | None = None) -> float | None:
        """A number with its unit; None where there is none. More than 0, or at least ``least``."""
        return None if key not in self.data else self._checked(key, self.data[key], unit, least)

    def numbers(self, key: str, unit: Unit, example: str) -> dict[str, float] | None:
        """A table of numbers, each more than 0."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict) or not value:
            raise self.error(key, f"write {key} = {example}, not {shown(value)}")
        return {name: self._checked(f"{key}.{name}", one, unit, None) for name, one in value.items()}

    def names(self, key: str, known: Collection[str], least: int = 1, most: int | None = None) -> list[str]:
        """Different names, each of a known device."""
        value = self.data.get(key)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.error(key, f'write names of devices, such as ["strix-1", "strix-2"], not {shown(value)}')
        for name in value:
            self.device(key, name, known)
            if value.count(name) > 1:
                raise self.error(key, f"{shown(name)} is there twice; a message that comes back goes in a circle")
        if len(value) < least or (most is not None and len(value) > most):
            wanted = f"{least}" if least == most else f"at least {least}"
            raise self.error(key, f"{wanted} different devices are needed, not {len(value)}")
        return value

    def device(self, key: str, name: str, known: Collection[str]) -> str:
        if name not in known:
            several = [one for one in known if one.startswith(f"{name}-")][:1]
            hint = f"; with a count its first one is {several[0]!r}" if several else ""
            raise self.error(key, f"there is no device {shown(name)}, only {some(known)}{hint}")
        return name

    def _checked(self, key: str, value: Any, unit: Unit, least: float | None) -> float:
        number = self._parsed(key, value, unit)
        if not (number >= least if least is not None else number > 0) or not number <= MOST:
            wanted = "more than 0" if least is None else f"at least {least:g}"
            raise self.error(key, f"{wanted} is needed, not {shown(value)}; write for example {unit.example}")
        return number

    def _parsed(self, key: str, value: Any, unit: Unit) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise self.error(key, f"{shown(value)} is no number; write for example {unit.example}")
        try:
            if isinstance(value, str):
                text = value.strip()
                return -unit.parse(text[1:]) if text.startswith("-") else unit.parse(text)
            return float(value) if math.isfinite(value) else math.inf
        except (ConfigError, ValueError, OverflowError):
            raise self.error(key, f"{shown(value)} is no number; write for example {unit.example}") from None


class Unit:
    """How a number is written, with ``example`` as it stands in a file. Without a unit: bytes, bytes per second,
    bits per second on cables, seconds, watts, dollars."""

    def __init__(self, parse: Callable[[str], float], example: str) -> None:
        self.parse = parse
        self.example = example


def _plain(text: str) -> float:
    if not (_EXPONENT.fullmatch(text) or text.replace(".", "", 1).isdecimal()):
        raise ValueError(text)
    return float(text)


def _bytes_per_second(text: str) -> float:
    return parse_bytes(text.removesuffix("/s"))


BYTES = Unit(parse_bytes, '"124 GiB"')
BYTES_PER_SECOND = Unit(_bytes_per_second, '"256 GB/s"')
RATE = Unit(parse_rate, '"10 Gb/s"')
SECONDS = Unit(parse_seconds, '"5us"')
FLOPS = Unit(_plain, "59e12")
WATTS = Unit(_plain, "133")
DOLLARS = Unit(_plain, "1999")
PART = Unit(_plain, "0.8")


def tables(data: Mapping[str, Any], key: str, origin: str) -> list[Mapping[str, Any]]:
    """The tables of an array of tables; none where there is none."""
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ConfigError(f"{origin}: {key} holds tables: write [[{key}]] above the fields of each")
    return found


def shown(value: object) -> str:
    """What was written, if short."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST:
        return "a number that is too large"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def some(names: Collection[str]) -> str:
    """The first few of them."""
    listed: Sequence[str] = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")

"""Bytes, rates, seconds and fractions: parsing what people write, writing what people read."""

from __future__ import annotations

import re

from ferrule.errors import ConfigError

_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _BYTES |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "m": 60.0, "min": 60.0, "h": 3600.0}
_SECONDS |= {"d": 86400.0}
_BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(r"([kKmMgGtT]?)(?:b|bits?)?(?:ps)?")  # GB/s would be bytes
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-zµ]*)\s*")


def parse_bytes(text: str) -> int:
    """``"64 KiB"`` -> 65536. Without a unit: bytes. KiB, MiB... are powers of 1024; kB, MB... of 1000.

    Raises `ConfigError` when the text is no size or not a whole number of bytes.
    """
    match = _NUMBER.fullmatch(text)
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ConfigError(f"{text!r} is not a size; write for example 4096, 64KiB or 2MiB")
    value = float(match[1]) * factor
    if value != int(value):
        raise ConfigError(f"{text!r} is not a whole number of bytes")
    # Whole numbers stay exact beyond 2**53, where a float would round them.
    return int(match[1]) * factor if match[1].isdigit() else int(value)


def format_bytes(count: int) -> str:
    """65536 -> ``"64 KiB"``: the largest power of 1024 that leaves at least 1, with at most one decimal."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.0f} TiB" if value == int(value) else f"{value:.1f} TiB"


def parse_seconds(text: str) -> float:
    """``"500ms"`` -> 0.5. Without a unit: seconds. Raises `ConfigError` when the text is no duration."""
    match = _NUMBER.fullmatch(text)
    factor = _SECONDS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ConfigError(f"{text!r} is not a duration; write for example 30, 500ms or 2min")
    return float(match[1]) * factor


def format_seconds(seconds: float) -> str:
    """0.0000123 -> ``"12.3 µs"``: three significant digits in the unit that fits."""
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


def parse_rate(text: str) -> float:
    """``"2.5 Gb/s"`` -> 2.5e9, in bits per second; also ``2.5G``, ``2.5gbit``, ``2500 Mbit/s``. Units are of 1000.

    Raises `ConfigError` when the text is no rate.
    """
    number, _, unit = text.strip().replace("/s", "ps").partition(" ")
    split = _NUMBER.fullmatch(number + unit.strip())
    factor = _RATE.fullmatch(split[2]) if split else None
    if split is None or factor is None:
        raise ConfigError(f"{text!r} is not a rate; write for example 1G, 2.5Gb/s or 400Mbit")
    return float(split[1]) * _BITS[factor[1].lower()]


def format_rate(bits_per_second: float) -> str:
    """2.5e9 -> ``"2.5 Gb/s"``: three significant digits in the unit that fits."""
    value = bits_per_second
    for unit in ("b/s", "kb/s", "Mb/s", "Gb/s"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} Tb/s"


def parse_fraction(text: str) -> float:
    """``"1%"`` -> 0.01, ``"0.01"`` -> 0.01. Raises `ConfigError` when the text is no number from 0 to 1."""
    number = text.strip().removesuffix("%").strip()
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ConfigError(f"{text!r} is not a fraction; write for example 1% or 0.01, at most 100%")
    return value


def format_number(value: float) -> str:
    """12.34 -> ``"12.3"``, 1750 -> ``"1,750"``: three significant digits, and whole from 1000 on."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def format_fraction(value: float) -> str:
    """0.01 -> ``"1 %"``."""
    return f"{value * 100:.3g} %"

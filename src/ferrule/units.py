"""Bytes and seconds: parsing what people write, writing what people read."""

from __future__ import annotations

import re

from ferrule.errors import ConfigError

_BYTES = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
    "t": 1000**4,
    "tb": 1000**4,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "m": 60.0, "min": 60.0, "h": 3600.0}
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

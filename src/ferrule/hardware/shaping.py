"""Traffic shaping of a cable, in numbers: its effect on what is sent into it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, Unpack, cast

from ferrule.errors import ConfigError
from ferrule.units import (
    format_bytes,
    format_fraction,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_fraction,
    parse_rate,
    parse_seconds,
)

MAX_DELAY_SECONDS = 60.0
_QUEUE_SECONDS = 20e-3
_LEAST_QUEUE_BYTES = 256 * 1024
_STALLED_QUEUE_BYTES = 64 << 20
CHANCES = ("loss", "corrupt", "duplicate", "reorder")


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """One direction of a cable. Without any of these it is as fast as this machine copies.

    ``rate``: bits per second of frames on the wire; None: no limit. ``delay``: seconds from the end of a frame's
    sending to its arrival. ``jitter``: the delay is up to so many seconds shorter or longer; frames stay in order.
    ``loss``, ``corrupt`` (one bit is wrong), ``duplicate``, ``reorder`` (overtaken by the next ones): chances of each
    frame, from 0 to 1. ``collapse``: what both directions *together* get while both are under load, in parts of
    ``rate``; 2 is no collapse, 1 half duplex. ``queue``: bytes that may wait for their turn, what comes then is lost;
    None: 20 ms. ``overhead``: bytes on the wire for each frame beside its own, 24 with Ethernet (preamble, checksum,
    gap).
    """

    rate: float | None = None
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    collapse: float | None = None
    queue: int | None = None
    overhead: int = 0

    def __post_init__(self) -> None:
        for name in ("delay", "jitter"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_DELAY_SECONDS:
                raise ConfigError(f"a cable's {name} must be from 0 to {MAX_DELAY_SECONDS:g} s, not {value:g}")
        for name in CHANCES:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"a cable's {name} is a chance from 0 to 1, not {value:g}")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ConfigError(f"a cable's rate must be more than 0 bit/s, not {self.rate:g}")
        if self.collapse is not None and not 0 < self.collapse <= 2:
            raise ConfigError(f"a cable's collapse must be more than 0 and at most 2, not {self.collapse:g}")
        if self.collapse is not None and self.rate is None:
            raise ConfigError("a cable collapses to a part of its rate: give it a rate, too")
        if self.overhead < 0 or (self.queue is not None and self.queue < 1):
            raise ConfigError("a cable's overhead must be at least 0 bytes, and its queue at least 1")

    @property
    def plain(self) -> bool:
        """Whether the kernel alone can do it: a rate, or nothing."""
        return all(getattr(self, one.name) == one.default for one in fields(Shaping) if one.name != "rate")

    @property
    def takes_chances(self) -> bool:
        return any(getattr(self, name) > 0 for name in CHANCES)

    @property
    def queue_bytes(self) -> int:
        """The bytes that may wait. Without a rate none do, unless the cable stalls."""
        if self.queue is not None:
            return self.queue
        return (
            _STALLED_QUEUE_BYTES if self.rate is None else max(int(self.rate / 8 * _QUEUE_SECONDS), _LEAST_QUEUE_BYTES)
        )

    def describe(self, *without: str) -> str:
        """``rate=1 Gb/s delay=10 µs``: what is not as in a cable without properties, but for what is told elsewhere."""
        return self._text([name for name in _NUMBERS if name not in without], Shaping())

    def differs(self, other: Shaping) -> str:
        """`describe` of the numbers that are not the same in ``other``."""
        return self._text(list(_NUMBERS), other)

    def _text(self, names: Sequence[str], other: Shaping) -> str:
        values = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(other, name)}
        return " ".join(f"{name}={'none' if v is None else _NUMBERS[name][1](v)}" for name, v in values.items())


def _none_or(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text == "none" else parse(text)


def _collapse(text: str) -> float:
    """``"60%"`` or ``"0.6"``; up to 2, so not a fraction."""
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


_NUMBERS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "rate": (_none_or(parse_rate), format_rate),
    "delay": (parse_seconds, format_seconds),
    "jitter": (parse_seconds, format_seconds),
    **dict.fromkeys(CHANCES, (parse_fraction, format_fraction)),
    "collapse": (_none_or(_collapse), lambda value: f"{value:g}"),
    "queue": (_none_or(parse_bytes), format_bytes),
    "overhead": (parse_bytes, format_bytes),
}
"""Parser and formatter of each number of `Shaping`."""


def parse_number(name: str, text: str) -> Any:
    """One of the numbers of `Shaping`, as a person writes it. Raises `ConfigError`."""
    try:
        return _NUMBERS[name][0](text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a number") from None


class Changes(TypedDict, total=False):
    """Some of the numbers of `Shaping`."""

    rate: float | None
    delay: float
    jitter: float
    loss: float
    corrupt: float
    duplicate: float
    reorder: float
    collapse: float | None
    queue: int | None
    overhead: int


def parse_changes(arguments: Sequence[str]) -> Changes:
    """``["delay=300us", "loss=1%"]`` -> ``{"delay": 0.0003, "loss": 0.01}``. Raises `ConfigError`."""
    changes: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or name not in _NUMBERS:
            raise ConfigError(f"{argument!r}: a cable has {', '.join(_NUMBERS)}; write for example delay=300us loss=1%")
        try:
            changes[name] = parse_number(name, text)
        except ConfigError as error:
            raise ConfigError(f"{argument}: {error}") from None
    return cast(Changes, changes)


def changed(shaping: Shaping, **changes: Unpack[Changes]) -> Shaping:
    """``shaping`` with some values replaced; without a rate there is no collapse either."""
    if "rate" in changes and changes["rate"] is None:
        changes.setdefault("collapse", None)
    return replace(shaping, **changes)

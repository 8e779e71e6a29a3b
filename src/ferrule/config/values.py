"""Numbers, durations and addresses out of variables; an error names the variable and its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from ferrule.errors import ConfigError
from ferrule.units import parse_seconds


def parse_address(text: str, name: str) -> tuple[str, int]:
    """``"host:port"`` or ``"[::1]:port"``; without a host the loopback address. ``name`` is for the error."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ConfigError(f"{name}={text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def is_address(text: str) -> bool:
    """Whether it is an IP address, and no name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, leads to this machine itself. A name that is not ``localhost`` need not."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        return parse_seconds(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def read_choice(environ: Mapping[str, str], name: str, choices: Sequence[str], what: str) -> str:
    """The first of ``choices`` where it is not set. ``what``: what another text is, for the error."""
    text = environ.get(name) or choices[0]
    if text not in choices:
        raise ConfigError(f"{name}={text!r} is {what}")
    return text


def read_number(environ: Mapping[str, str], name: str, low: float, high: float, *, whole: bool = False) -> float:
    text = environ[name]
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a {'whole ' if whole else ''}number") from None
    if not low <= value <= high:
        raise ConfigError(f"{name}={text} is out of range; it must be between {low:g} and {high:g}")
    return value

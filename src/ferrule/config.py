"""Settings of a rank, read from the environment in one place and checked there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ferrule.errors import ConfigError
from ferrule.units import parse_seconds

TransportChoice = Literal["auto", "shm", "tcp"]
TRANSPORT_CHOICES: tuple[TransportChoice, ...] = ("auto", "shm", "tcp")

DEFAULT_TIMEOUT = 300.0
"""Seconds an operation may wait: long enough for a peer that loads a model, short enough not to look hung forever."""

_MIN_KEY_BYTES = 16
_GROUP_VARIABLES = ("FERRULE_RANK", "FERRULE_WORLD_SIZE", "FERRULE_ADDRESS", "FERRULE_KEY", "FERRULE_LISTEN_FD")


@dataclass(frozen=True)
class FabricSettings:
    """Who this rank is and how it finds the others.

    ``address``: where rank 0 listens. ``key``: the cluster key; empty only for a group of one. ``listen_fd``:
    rank 0's already listening socket, inherited from its launcher. ``timeout`` in seconds. ``spin_us``: how long
    to busy-wait before yielding, in microseconds; None lets the fabric decide from the number of cores.
    """

    rank: int = 0
    world_size: int = 1
    address: tuple[str, int] = ("127.0.0.1", 0)
    key: bytes = b""
    transport: TransportChoice = "auto"
    timeout: float = DEFAULT_TIMEOUT
    listen_fd: int | None = None
    spin_us: float | None = None


def fabric_settings(environ: Mapping[str, str], *, strict: bool = False) -> FabricSettings:
    """Read the ``FERRULE_*`` variables. Raises `ConfigError` that names the variable at fault.

    Without any variable that describes a group the answer is a group of one, or an error with ``strict``.
    """
    transport = _transport(environ)
    timeout = _timeout(environ)
    spin_us = _number(environ, "FERRULE_SPIN_US", 0.0, 1e6) if environ.get("FERRULE_SPIN_US") else None
    present = [name for name in _GROUP_VARIABLES if environ.get(name)]
    described = [name for name in present if name in ("FERRULE_RANK", "FERRULE_WORLD_SIZE", "FERRULE_LISTEN_FD")]
    # A cluster key or address may stand in a profile for good; alone they do not ask for a group.
    if not described and not strict:
        return FabricSettings(transport=transport, timeout=timeout, spin_us=spin_us)
    for name in ("FERRULE_RANK", "FERRULE_WORLD_SIZE"):
        if name not in present:
            found = f"{', '.join(present)} is set but {name} is not" if present else f"{name} is not set"
            raise ConfigError(
                f"{found}; start ranks with ferrule.cluster.launch_local, or set FERRULE_RANK and FERRULE_WORLD_SIZE"
            )
    world_size = int(_number(environ, "FERRULE_WORLD_SIZE", 1, 1 << 16, whole=True))
    rank = int(_number(environ, "FERRULE_RANK", 0, world_size - 1, whole=True))
    listen_fd = None
    if "FERRULE_LISTEN_FD" in present:
        listen_fd = int(_number(environ, "FERRULE_LISTEN_FD", 0, 1 << 30, whole=True))
        if rank != 0:
            raise ConfigError("FERRULE_LISTEN_FD is set for a rank other than 0; only rank 0 listens")
    if world_size > 1 and "FERRULE_KEY" not in present:
        raise ConfigError(
            f"FERRULE_KEY is not set but FERRULE_WORLD_SIZE is {world_size}; ranks need the cluster's key "
            "(hexadecimal, for example from `openssl rand -hex 32`) to trust each other"
        )
    if world_size > 1 and "FERRULE_ADDRESS" not in present and listen_fd is None:
        raise ConfigError("FERRULE_ADDRESS is not set; give host:port where rank 0 listens, the same for every rank")
    return FabricSettings(
        rank=rank,
        world_size=world_size,
        address=_address(environ),
        key=_key(environ),
        transport=transport,
        timeout=timeout,
        listen_fd=listen_fd,
        spin_us=spin_us,
    )


def parse_address(text: str, name: str) -> tuple[str, int]:
    """``"host:port"`` or ``"[::1]:port"``; without a host the loopback address. ``name`` is for the error."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ConfigError(f"{name}={text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def check_transport(text: str, name: str) -> TransportChoice:
    if text not in TRANSPORT_CHOICES:
        raise ConfigError(f"{name}={text!r} is no transport; choose one of {', '.join(TRANSPORT_CHOICES)}")
    return text


def _transport(environ: Mapping[str, str]) -> TransportChoice:
    return check_transport(environ.get("FERRULE_TRANSPORT") or "auto", "FERRULE_TRANSPORT")


def _timeout(environ: Mapping[str, str]) -> float:
    text = environ.get("FERRULE_TIMEOUT")
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = parse_seconds(text)
    except ConfigError as error:
        raise ConfigError(f"FERRULE_TIMEOUT: {error}") from None
    if seconds <= 0:
        raise ConfigError(f"FERRULE_TIMEOUT={text!r} must be more than 0")
    return seconds


def _address(environ: Mapping[str, str]) -> tuple[str, int]:
    text = environ.get("FERRULE_ADDRESS")
    return parse_address(text, "FERRULE_ADDRESS") if text else ("127.0.0.1", 0)


def _key(environ: Mapping[str, str]) -> bytes:
    text = environ.get("FERRULE_KEY", "")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        raise ConfigError("FERRULE_KEY is not hexadecimal; make one with `openssl rand -hex 32`") from None
    if key and len(key) < _MIN_KEY_BYTES:
        raise ConfigError(f"FERRULE_KEY has only {len(key)} bytes; at least {_MIN_KEY_BYTES} keep strangers out")
    return key


def _number(environ: Mapping[str, str], name: str, low: float, high: float, *, whole: bool = False) -> float:
    text = environ[name]
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a {'whole ' if whole else ''}number") from None
    if not low <= value <= high:
        raise ConfigError(f"{name}={text} is out of range; it must be between {low:g} and {high:g}")
    return value

"""Settings of a rank, from the environment: who it is, how it finds the others, how they talk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from ferrule.config.values import parse_address, read_choice, read_number, read_seconds
from ferrule.errors import ConfigError

TransportChoice = Literal["auto", "shm", "verbs", "tcp"]
TRANSPORT_CHOICES: tuple[TransportChoice, ...] = ("auto", "shm", "verbs", "tcp")
Calibration = Literal["cached", "fresh", "never"]
AlgorithmChoice = Literal["auto", "once", "pieces", "doubling", "tree", "ring"]
ALGORITHM_CHOICES: tuple[AlgorithmChoice, ...] = get_args(AlgorithmChoice)

_CALIBRATIONS: Mapping[str, Calibration] = {"1": "cached", "fresh": "fresh", "0": "never"}
_NO_CALIBRATION = "none of 1 (measure links that are not known), fresh (measure all), 0 (none)"
_NO_ALGORITHM = f"no algorithm; choose one of {', '.join(ALGORITHM_CHOICES)}"
_NO_ENCRYPTION = "neither 1 (encrypt what goes over cables) nor 0"

DEFAULT_TIMEOUT = 300.0
"""Seconds an operation may wait: long enough for a peer that loads a model, short enough not to look hung forever."""

DEFAULT_HEARTBEAT = 0.8
"""Seconds of silence after which a peer is lost."""

_MIN_HEARTBEAT = 0.05
_MAX_RAILS = 16
_MIN_KEY_BYTES = 16
_MAX_HOST_ID = 64
_GROUP_VARIABLES = ("FERRULE_RANK", "FERRULE_WORLD_SIZE", "FERRULE_ADDRESS", "FERRULE_KEY", "FERRULE_LISTEN_FD")
OUTER_JOB = frozenset({*_GROUP_VARIABLES, "FERRULE_LISTEN"})
"""Variables that a launcher sets for a rank, and that must not leak into the ranks of a job inside it."""


@dataclass(frozen=True)
class FabricSettings:
    """Settings of this rank: who it is and how it finds the others.

    ``addresses``: where rank 0 listens, or a rank that relays to it. ``key``: the cluster key; empty only for a group
    of one. ``listen_fd``: rank 0's already listening socket, inherited from its launcher. ``listen``: where this rank
    listens from the beginning, so that others may be relayed through it; without a host, everywhere. ``interfaces``:
    the names of those to use, or with a ``^`` before it not to use. ``rails``: how many sockets per interface and
    stream; None: as many as measure faster. ``heartbeat``: seconds of silence after which a peer is lost; 0: never.
    ``calibrate``: measure the links that no earlier start has measured, all, or none. ``algorithm``: the one to use
    wherever a collective has it.
    ``timeout`` in seconds. ``spin_us``: how long to busy-wait before yielding, in microseconds; None lets the fabric
    decide from the number of cores. ``encrypt``: all that goes over cables, by TLS; there is no RDMA then.
    """

    rank: int = 0
    world_size: int = 1
    addresses: tuple[tuple[str, int], ...] = (("127.0.0.1", 0),)
    key: bytes = b""
    transport: TransportChoice = "auto"
    timeout: float = DEFAULT_TIMEOUT
    listen_fd: int | None = None
    listen: tuple[str, int] | None = None
    interfaces: tuple[str, ...] = ()
    rails: int | None = None
    heartbeat: float = DEFAULT_HEARTBEAT
    calibrate: Calibration = "cached"
    algorithm: AlgorithmChoice = "auto"
    spin_us: float | None = None
    encrypt: bool = False


def _rails(environ: Mapping[str, str]) -> int | None:
    if environ.get("FERRULE_RAILS", "auto").strip().lower() in ("", "auto"):
        return None
    try:
        return int(read_number(environ, "FERRULE_RAILS", 1, _MAX_RAILS, whole=True))
    except ConfigError as error:
        raise ConfigError(f"{error}, or auto") from None


def fabric_settings(environ: Mapping[str, str], *, strict: bool = False) -> FabricSettings:
    """Read the ``FERRULE_*`` variables. Raises `ConfigError` that names the variable at fault.

    Without any variable that describes a group the answer is a group of one, or an error with ``strict``.
    """
    settings = FabricSettings(
        addresses=_addresses(environ),
        key=_key(environ),
        transport=check_transport(environ.get("FERRULE_TRANSPORT") or "auto", "FERRULE_TRANSPORT"),
        timeout=_timeout(environ),
        listen=_listen(environ),
        interfaces=tuple(name.strip() for name in environ.get("FERRULE_INTERFACES", "").split(",") if name.strip()),
        rails=_rails(environ),
        heartbeat=_heartbeat(environ),
        calibrate=_CALIBRATIONS[read_choice(environ, "FERRULE_CALIBRATE", list(_CALIBRATIONS), _NO_CALIBRATION)],
        algorithm=cast(AlgorithmChoice, read_choice(environ, "FERRULE_ALGORITHM", ALGORITHM_CHOICES, _NO_ALGORITHM)),
        spin_us=read_number(environ, "FERRULE_SPIN_US", 0.0, 1e6) if environ.get("FERRULE_SPIN_US") else None,
        encrypt=read_choice(environ, "FERRULE_ENCRYPT", ("0", "1"), _NO_ENCRYPTION) == "1",
    )
    if settings.encrypt and settings.transport == "verbs":
        raise ConfigError(
            "FERRULE_TRANSPORT=verbs cannot be encrypted, which FERRULE_ENCRYPT=1 asks for: the adapter moves "
            "bytes by itself; leave one of them out"
        )
    present = [name for name in _GROUP_VARIABLES if environ.get(name)]
    described = [name for name in present if name in ("FERRULE_RANK", "FERRULE_WORLD_SIZE", "FERRULE_LISTEN_FD")]
    # A cluster key or address may stand in a profile for good; alone they do not ask for a group.
    if not described and not strict:
        return settings
    for name in ("FERRULE_RANK", "FERRULE_WORLD_SIZE"):
        if name not in present:
            found = f"{', '.join(present)} is set but {name} is not" if present else f"{name} is not set"
            raise ConfigError(
                f"{found}; start ranks with `ferrule launch -n 2 script.py`, or set FERRULE_RANK and FERRULE_WORLD_SIZE"
            )
    world_size = int(read_number(environ, "FERRULE_WORLD_SIZE", 1, 1 << 16, whole=True))
    rank = int(read_number(environ, "FERRULE_RANK", 0, world_size - 1, whole=True))
    listen_fd = None
    if "FERRULE_LISTEN_FD" in present:
        listen_fd = int(read_number(environ, "FERRULE_LISTEN_FD", 0, 1 << 30, whole=True))
        if rank != 0:
            raise ConfigError("FERRULE_LISTEN_FD is set for a rank other than 0; only rank 0 listens")
    if world_size > 1 and "FERRULE_KEY" not in present:
        raise ConfigError(
            f"FERRULE_KEY is not set but FERRULE_WORLD_SIZE is {world_size}; ranks need the cluster's key "
            "(hexadecimal, for example from `openssl rand -hex 32`) to trust each other"
        )
    if world_size > 1 and "FERRULE_ADDRESS" not in present and listen_fd is None:
        raise ConfigError("FERRULE_ADDRESS is not set; give host:port where rank 0 listens, the same for every rank")
    return replace(settings, rank=rank, world_size=world_size, listen_fd=listen_fd)


def rank_variables(rank: int, world_size: int, addresses: Iterable[str], key: str) -> dict[str, str]:
    """Variables that a launcher sets, so that a rank finds the others."""
    return {
        "FERRULE_RANK": str(rank),
        "FERRULE_WORLD_SIZE": str(world_size),
        "FERRULE_ADDRESS": ",".join(addresses),
        "FERRULE_KEY": key,
    }


def outer_environment() -> dict[str, str]:
    """This process's environment without what a launcher set for it: what the ranks of another job inherit."""
    return {name: value for name, value in os.environ.items() if name not in OUTER_JOB}


def host_id(environ: Mapping[str, str]) -> str:
    """``FERRULE_HOST_ID``: makes the rank's host another one than the machine it runs on; empty when not set."""
    text = environ.get("FERRULE_HOST_ID", "")
    if not text.isprintable() or len(text) > _MAX_HOST_ID:
        raise ConfigError(f"FERRULE_HOST_ID={text!r} is not a name of at most {_MAX_HOST_ID} printable characters")
    return text


def check_transport(text: str, name: str) -> TransportChoice:
    if text not in TRANSPORT_CHOICES:
        raise ConfigError(f"{name}={text!r} is no transport; choose one of {', '.join(TRANSPORT_CHOICES)}")
    return text


def _timeout(environ: Mapping[str, str]) -> float:
    seconds = read_seconds(environ, "FERRULE_TIMEOUT", DEFAULT_TIMEOUT)
    if seconds <= 0:
        raise ConfigError(f"FERRULE_TIMEOUT={environ['FERRULE_TIMEOUT']!r} must be more than 0")
    return seconds


def _addresses(environ: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    texts = [text.strip() for text in environ.get("FERRULE_ADDRESS", "").split(",") if text.strip()]
    return tuple(parse_address(text, "FERRULE_ADDRESS") for text in texts) or (("127.0.0.1", 0),)


def _listen(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """``host:port``, ``:port`` or ``port``."""
    text = environ.get("FERRULE_LISTEN")
    if not text:
        return None
    port = text.removeprefix(":")
    if port.isdigit() and 0 < int(port) < 65536:
        return "", int(port)
    return parse_address(text, "FERRULE_LISTEN")


def _heartbeat(environ: Mapping[str, str]) -> float:
    seconds = read_seconds(environ, "FERRULE_HEARTBEAT", DEFAULT_HEARTBEAT)
    if seconds != 0 and seconds < _MIN_HEARTBEAT:
        text = environ["FERRULE_HEARTBEAT"]
        raise ConfigError(f"FERRULE_HEARTBEAT={text!r} must be 0 (off) or at least {_MIN_HEARTBEAT:g} s")
    return seconds


def _key(environ: Mapping[str, str]) -> bytes:
    text = environ.get("FERRULE_KEY", "")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        raise ConfigError("FERRULE_KEY is not hexadecimal; make one with `openssl rand -hex 32`") from None
    if key and len(key) < _MIN_KEY_BYTES:
        raise ConfigError(f"FERRULE_KEY has only {len(key)} bytes; at least {_MIN_KEY_BYTES} keep strangers out")
    return key

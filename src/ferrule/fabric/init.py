"""Join the group that the environment describes."""

from __future__ import annotations

from dataclasses import replace

from ferrule.config import FabricSettings, TransportChoice, check_transport, environment, fabric_settings
from ferrule.errors import ConfigError
from ferrule.fabric.group import Group
from ferrule.fabric.join.control_channel import Deadline
from ferrule.fabric.join.rendezvous import rendezvous


def init(
    *,
    strict: bool = False,
    timeout: float | None = None,
    meet_timeout: float | None = None,
    transport: TransportChoice | None = None,
    settings: FabricSettings | None = None,
) -> Group:
    """Meet the other ranks and return the group of all of them.

    Read from the environment: ``FERRULE_RANK``, ``FERRULE_WORLD_SIZE``, ``FERRULE_ADDRESS`` (host:port where rank 0
    listens), ``FERRULE_KEY`` (the cluster key, hexadecimal), ``FERRULE_TRANSPORT`` (``config.TRANSPORT_CHOICES``),
    ``FERRULE_TIMEOUT`` (seconds), ``FERRULE_HEARTBEAT`` (seconds of silence after which a rank is lost),
    ``FERRULE_LISTEN_FD`` (rank 0 only: an inherited listening socket) and ``FERRULE_SPIN_US``. With nothing set the
    answer is a group of one; with ``strict`` that is an error too.

    ``timeout``: seconds for the rendezvous and, unless given per call, for each operation. ``meet_timeout``: seconds
    for the rendezvous alone, where that is to be another time. ``transport`` overrides the environment and must be
    the same on all ranks. ``settings`` takes the place of the whole environment.

    Raises `ConfigError` (a variable is missing or wrong), `RendezvousError` (ranks missing, claimed twice, of
    another version), `AuthError` (another key).
    """
    if settings is None:
        settings = fabric_settings(environment(), strict=strict)
    for name, seconds in (("timeout", timeout), ("meet_timeout", meet_timeout)):
        if seconds is not None and seconds <= 0:
            raise ConfigError(f"{name}={seconds} must be more than 0")
    if timeout is not None:
        settings = replace(settings, timeout=timeout)
    if transport is not None:
        settings = replace(settings, transport=check_transport(transport, "transport"))
    meeting = Deadline(settings.timeout if meet_timeout is None else meet_timeout)
    return Group(*rendezvous(settings, meeting), settings.timeout)

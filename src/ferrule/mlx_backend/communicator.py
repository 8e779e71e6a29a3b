"""Groups for MLX: made and ended here when native/python/mpi is asked to, and used there without Python."""

from __future__ import annotations

import atexit
import os
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path

from ferrule.config import TransportChoice, environment, fabric_settings
from ferrule.errors import ConfigError, FerruleError
from ferrule.fabric import Group, init
from ferrule.mlx_backend.library import LIBRARY, library

IDLE_SECONDS = 3600.0
"""Deadline of an operation unless ``FERRULE_TIMEOUT`` is set: ranks of a chat wait for a person, and a lost one is
noticed by its heartbeat long before."""

KEPT = 16
"""How many groups that MLX has let go stay open: it does so while operations of them still wait in its streams."""

LEAVE_SECONDS = 5.0
"""Time that a rank whose program ends waits for the others to end, too: until then MLX's streams go on with what they
were given, such as the token after the last one, and the others may need it."""

Seat = tuple[int, int, int, float, list[str]]
"""For native code: address of the group, rank, size, seconds of an operation, and a text for each rank."""

_world: Communicator | None = None
_freed: deque[Group] = deque()


class Communicator:
    """What stands behind an ``MPI_Comm``. ``control``: a group of the same ranks which MLX's streams do not use."""

    def __init__(
        self, group: Group, timeout: float, control: Group | None = None, transport: TransportChoice = "auto"
    ) -> None:
        self.group = group
        self._timeout = timeout
        self._control = control
        self._transport = transport

    @property
    def seat(self) -> Seat:
        group = self.group
        peers = group.describe().peers
        places = [f"rank {peer.rank} on {peer.host} (pid {peer.pid}, {peer.path})" for peer in peers]
        return group.native_address, group.rank, group.size, self._timeout, places

    def split(self, color: int, key: int) -> Communicator | None:
        """As ``MPI_Comm_split``; None for a negative ``color``, which asks for no group."""
        core = sys.modules.get("mlx.core")
        if self._control is None and core is not None:
            # What was evaluated before comes before, on all ranks.
            core.synchronize(core.default_stream(core.cpu))
        meeting = self._control or self.group
        made = meeting.split(color if color >= 0 else None, key, transport=self._transport)
        return None if made is None else Communicator(made, self._timeout, transport=self._transport)

    def free(self) -> None:
        _freed.append(self.group)
        if len(_freed) > KEPT:
            _freed.popleft().close()

    def leave(self) -> None:
        """The program ends; by an error, the others need not wait to hear of it."""
        if self._control is not None and not hasattr(sys, "last_type"):
            with suppress(FerruleError):  # whatever it is, nobody waits for this rank any more
                self._control.barrier(timeout=LEAVE_SECONDS)


def open_world() -> Communicator | None:
    """The ranks that the environment describes; None for a process by itself.

    Raises as `ferrule.fabric.init` does, and `ConfigError` where MLX has opened another copy of Ferrule.
    """
    global _world
    opened, ours = os.environ.get(LIBRARY, ""), library()
    if opened and Path(opened).exists() and not Path(opened).samefile(ours):
        raise ConfigError(f"{LIBRARY} is {opened}, but Ferrule of this Python is elsewhere; set it to {ours}")
    variables = environment()
    settings = fabric_settings(variables)
    if settings.world_size > 1:
        timeout = settings.timeout if variables.get("FERRULE_TIMEOUT") else IDLE_SECONDS
        group = init(settings=settings, timeout=timeout, meet_timeout=settings.timeout)
        control = group.split(0, transport="tcp", timeout=settings.timeout)
        _world = Communicator(group, timeout, control, settings.transport)
        atexit.register(_world.leave)
    return _world


def world() -> Group:
    """The group under ``mx.distributed.init(backend="mpi")``. `Group.check` raises why it failed, as `PeerLost` and its
    like, which MLX hands on as text; `Group.describe` says how each rank is reached. Raises `ConfigError` without one.
    """
    if _world is None:
        raise ConfigError('MLX has no group of Ferrule: call mx.distributed.init(backend="mpi") first, in a rank')
    return _world.group

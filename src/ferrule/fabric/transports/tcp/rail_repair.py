"""Rail repair: connect rails that were lost again, once their cable is back."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from ferrule.errors import RendezvousError
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.dial import Call, dial
from ferrule.fabric.join.handshake import Identity, Role
from ferrule.fabric.join.mesh import MAX_WATCHED_RAILS, STREAMS, Mesh

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.2
"""With a call's own time below the 2 s that a channel waits whose last rail was reset."""
_ROUTED_SECONDS = 0.1
_ANSWER_SECONDS = 2.0
_END_SECONDS = 2.0


class _Closed(Exception):
    """The last group was closed."""


class RailRepair:
    """Threads that make the connections of lost rails anew, towards those ranks to which this one made them first."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._stop = threading.Event()
        # A thread each: calls over a cable that is out are waited for, while those behind a lost rank have little time
        # until they count as lost, too.
        tasks = [(self._lost_rails, _PAUSE_SECONDS), (self._lost_routes, _ROUTED_SECONDS)]
        self._threads = [
            threading.Thread(target=self._run, args=task, name="ferrule rails", daemon=True)
            for task in (tasks if mesh.routes else tasks[:1])
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Its threads end at once: one that is in native code while the interpreter ends takes the process with it."""
        self._stop.set()
        for thread in self._threads:
            if thread is not threading.current_thread():  # where the collector of garbage closes a group
                thread.join(_END_SECONDS)

    def _run(self, find: Callable[[], list[Call]], pause: float) -> None:
        while not self._stop.wait(pause):
            with contextlib.suppress(_Closed, RendezvousError):  # the latter: the only path has just gone
                calls = find()
                results = dial(calls, self._mesh.key, Deadline(_ANSWER_SECONDS, self._check))
                for call, result in zip(calls, results, strict=True):
                    if isinstance(result, ControlChannel):
                        _log.info("the rail to %s is back", call)
                        self._mesh.take_back(result)

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Closed

    def _lost_rails(self) -> list[Call]:
        """The connections over cables that are missing."""
        calls = self._lost_beats()
        for live in self._mesh.live():
            for peer in range(live.rank):
                member = live.members[peer]
                rails = self._mesh.paths[member].rails
                for stream, role in enumerate(STREAMS):
                    states = live.native.rails(stream, peer)
                    # Where all that are left stall, TCP may wait for as long as the cable was out until it tries again.
                    stall = all(stalled for alive, *_, stalled in states if alive)
                    identity = Identity(role, live.rank, peer, len(live.members), live.pending.epoch)
                    well = [alive and not stall for alive, *_ in states]
                    missing = [rail.number for rail, alive in zip(rails, well, strict=False) if not alive]
                    calls += self._mesh.calls(member, [replace(identity, rail=number) for number in missing])
        return calls

    def _lost_beats(self) -> list[Call]:
        mesh, calls = self._mesh, []
        for peer, states in self._watched():
            rails = mesh.paths[peer].rails[:MAX_WATCHED_RAILS]
            missing = [rail.number for rail, alive in zip(rails, states, strict=False) if not alive]
            # The other end drops a connection for the one that takes its place. Were none left, that would look like
            # this rank's death; whether the peer is lost, or this process only got no processor, shows without us.
            if len(rails) > 1 and any(states):
                calls += mesh.calls(peer, [self._beat(peer, number) for number in missing])
        return calls

    def _lost_routes(self) -> list[Call]:
        """The heartbeat's connections to those behind a rank that is gone, by another route if there is one."""
        mesh, calls = self._mesh, []
        for peer, states in self._watched():
            if mesh.path_to(peer).via and not any(states):
                calls += mesh.calls(peer, [self._beat(peer, 0)])
        return calls

    def _watched(self) -> list[tuple[int, list[bool]]]:
        """The ranks below that are there, and whether each of the heartbeat's connections to them is."""
        heartbeat = self._mesh.heartbeat
        presences = [] if heartbeat is None else heartbeat.peers()[: self._mesh.rank]
        alive = [peer for peer, (presence, _) in enumerate(presences) if presence == "alive"]
        return [] if heartbeat is None else [(peer, heartbeat.rails(peer)) for peer in alive]

    def _beat(self, peer: int, rail: int) -> Identity:
        return Identity(Role.CONTROL, self._mesh.rank, peer, self._mesh.size, self._mesh.epoch, rail)

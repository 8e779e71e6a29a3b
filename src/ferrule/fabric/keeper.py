"""Bring back rails that were lost: a cable that was out is in again."""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import replace

from ferrule.fabric.dial import Call, dial
from ferrule.fabric.handshake import Identity, Role
from ferrule.fabric.link import Deadline, Link
from ferrule.fabric.mesh import LANES, MAX_WATCHED_RAILS, Mesh

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5
_ROUTED_SECONDS = 0.1
_ANSWER_SECONDS = 2.0


class _Closed(Exception):
    """Nobody needs these connections any more."""


class Keeper:
    """A thread that makes the connections of lost rails anew, towards those ranks to which this one made them first."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ferrule rails", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """It ends by itself, at once."""
        self._stop.set()

    def _run(self) -> None:
        # Where a rank between is lost, the next route has to be found before those behind it count as lost, too.
        pause = _ROUTED_SECONDS if self._mesh.routes else _PAUSE_SECONDS
        while not self._stop.wait(pause):
            calls = self._lost()
            with contextlib.suppress(_Closed):
                results = dial(calls, self._mesh.key, Deadline(_ANSWER_SECONDS, self._check))
                for call, result in zip(calls, results, strict=True):
                    if isinstance(result, Link):
                        _log.info("the rail to %s is back", call)
                        self._mesh.take_back(result)

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Closed

    def _lost(self) -> list[Call]:
        """The connections that are missing."""
        calls = self._lost_beats()
        for live in self._mesh.live():
            for peer in range(live.rank):
                member = live.members[peer]
                rails = self._mesh.ways[member].rails
                if len(rails) < 2:
                    continue
                for lane, role in enumerate(LANES):
                    states = live.native.rails(lane, peer)
                    identity = Identity(role, live.rank, peer, len(live.members), live.lobby.epoch)
                    missing = [rail.number for rail, (alive, *_) in zip(rails, states, strict=False) if not alive]
                    calls += self._mesh.calls(member, [replace(identity, rail=number) for number in missing])
        return calls

    def _lost_beats(self) -> list[Call]:
        mesh, calls = self._mesh, []
        presences = mesh.heartbeat.peers() if mesh.heartbeat is not None else []
        for peer, (presence, _) in enumerate(presences[: mesh.rank]):
            way = mesh.way(peer)
            rails = way.rails[:MAX_WATCHED_RAILS]
            if presence != "alive" or len(rails) == 1 or not (rails or way.via):
                continue
            assert mesh.heartbeat is not None
            states = mesh.heartbeat.rails(peer)
            identity = Identity(Role.CONTROL, mesh.rank, peer, mesh.size, mesh.epoch)
            if way.via and not any(states):
                calls += mesh.calls(peer, [identity])
            missing = [rail.number for rail, alive in zip(rails, states, strict=False) if not alive]
            calls += mesh.calls(peer, [replace(identity, rail=number) for number in missing])
        return calls

"""Devices that come back after they stayed lost: probed now and then, and used again when they stay."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ferrule.engine.host.lost_devices import DeviceOfHost, LostDevices
from ferrule.engine.host.placement import Deployment

PAUSES = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""Seconds between the probes of a device that does not answer; the last for all others."""
_log = logging.getLogger(__name__)

Probe = Callable[[str, str], Awaitable[str]]
"""Why a device of a host cannot be used now; empty where it can. Within a deadline; it raises nothing."""


@dataclass
class _Probed:
    """``misses``: probes in a row that failed; ``since``: when the first one of those that did not fail was."""

    due: float
    misses: int = 0
    since: float | None = field(default=None)


class DeviceReturns:
    """``lost``: what stays lost, by whose hosts it is probed. ``steady``: seconds that a device must have been back,
    twice as long after each return; None: none is used again."""

    def __init__(
        self, lost: LostDevices, probe: Probe, steady: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lost, self._probe, self._steady, self._clock = lost, probe, steady, clock
        self._probed: dict[DeviceOfHost, _Probed] = {}
        self._offer: tuple[Deployment, frozenset[DeviceOfHost]] | None = None
        self._trial: frozenset[DeviceOfHost] = frozenset()

    async def look(self) -> frozenset[DeviceOfHost]:
        """Probe those whose turn it is, while the model runs; returns those that have been back for long enough."""
        self.settled()
        if self._steady is None:
            return frozenset()
        now = self._clock()
        tried = {each for each in self._lost.all if not self._lost.given_up(each, now)}
        self._probed = {each: self._probed.get(each, _Probed(now + PAUSES[0])) for each in tried}
        await asyncio.gather(*(self._look_at(each) for each in tried if self._probed[each].due <= now))
        return frozenset(each for each in tried if self._is_back(each, self._steady))

    def offer(self, deployment: Deployment, back: frozenset[DeviceOfHost]) -> None:
        """Those of `look` that this deployment would use again."""
        self._offer = deployment, back

    def chosen(self, deployment: Deployment) -> None:
        """This deployment is started now: one that was offered uses its devices again. One after that, without a loss
        that `lost` was told of, means that it did not start."""
        if self._offer is not None and deployment == self._offer[0]:
            self._trial = self._offer[1]
            self._lost.use_again(self._trial, self._clock())
            for device in self._trial:  # lost again, it has to be back for a while again
                self._probed.pop(device, None)
        elif self._trial:
            self._lost.withdraw(self._trial)
            self._trial = frozenset()
        self._offer = None

    def settled(self) -> None:
        """What was chosen last has run, or ended in a loss that is known."""
        self._trial = frozenset()

    async def _look_at(self, device: DeviceOfHost) -> None:
        host, name = device
        why = await self._probe(host, name)
        state, now = self._probed[device], self._clock()
        if why:
            state.misses, state.since = state.misses + 1, None
            _log.debug("%s of %s is not back: %s", name, host or "this machine", why)
        elif state.since is None:
            state.misses, state.since = 0, now
            _log.warning("%s answers again", f"{name} of {host}" if host else name)
        state.due = now + PAUSES[min(state.misses, len(PAUSES) - 1)]

    def _is_back(self, device: DeviceOfHost, steady: float) -> bool:
        since, now = self._probed[device].since, self._clock()
        return since is not None and now - since >= steady * 2 ** self._lost.returns(device, now)

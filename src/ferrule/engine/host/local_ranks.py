"""The starter and the planner of rank processes of this machine, also in the hosts of a lab."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ferrule.config import environment, move_back_seconds
from ferrule.engine.device_probe import probe_here
from ferrule.engine.host.device_returns import DeviceReturns
from ferrule.engine.host.lost_devices import LostDevices, used_of
from ferrule.engine.host.migration import MOVE_WORTH
from ferrule.engine.host.placement import Deployment, Loss, RankStarter
from ferrule.engine.host.processes import Kind, LocalRanks, rank_threads, start_ranks, tell_options
from ferrule.engine.options import RankOptions
from ferrule.errors import ModelUnavailable, PlanError
from ferrule.process.memory import memory_free

if TYPE_CHECKING:
    from ferrule.engine.host.device_choice import DeviceChoice
    from ferrule.engine.host.prepare import PreparedModel
    from ferrule.lab import Lab
    from ferrule.model import ModelSpec
    from ferrule.plan import Plan

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 0.5
"""Time limit for a host of a lab to answer before it counts as cut off."""
CLOSED_PORT = 9
"""A port without a listener: a host that can be reached refuses the connection."""


class LocalStarter:
    """`RankStarter` of this machine. ``lab``: rank r runs on its host ``first_host`` + r modulo hosts.

    ``standby``: keep a process for each rank that has done its imports, which are most of a start. ``expected``: those
    that the first start takes, if they are of its kind.
    """

    def __init__(
        self,
        lab: Lab | None = None,
        *,
        standby: bool = False,
        expected: LocalRanks | None = None,
        first_host: int = 0,
    ) -> None:
        self._lab, self._with_standby, self._first = lab, standby, first_host
        self._standby = expected
        self._latest: LocalRanks | None = None

    def moved(self, other: RankStarter) -> tuple[int, ...] | None:
        """See `RankStarter.moved`: there are no other hosts."""
        return None

    async def start(self, options: RankOptions) -> LocalRanks:
        """Start it from the thread of the event loop, which lives as long as the ranks may."""
        ranks, self._standby = self._standby, None
        if ranks is None or not _complete(ranks, _kind(options)):
            ranks = start_ranks(_kind(options), self._lab, first_host=self._first)
        for ours in ranks.sockets:
            tell_options(ours, options)
        ranks.standby = lambda: self._standby
        self._latest = ranks
        return ranks

    async def prepare(self, deployment: Deployment) -> bool:
        kind = _kind(deployment.options)
        if self._standby is not None and not _complete(self._standby, kind):
            self._standby = None
        if self._with_standby and self._standby is None:
            self._standby = start_ranks(kind, self._lab, self._latest, self._first)
        return True

    async def close(self) -> None:
        ready, self._standby = self._standby, None
        if ready is not None:
            ready.discard()


def _complete(ranks: LocalRanks, kind: Kind) -> bool:
    """Have all of ``ranks``, which wait, again, if they are of this kind; else they are ended."""
    if ranks.kind == kind:
        with suppress(ModelUnavailable):
            for rank, code in enumerate(ranks.poll()):
                if code is not None:
                    ranks.renew(rank)
            return True
    ranks.discard()
    return False


def _kind(options: RankOptions) -> Kind:
    return Kind(options.plan.world_size, options.threads, options.encrypt)


class LocalPlanner:
    """Always the same plan: on this machine, where a process that died can be started again, or on the hosts of a
    ``lab``, as soon as cables lead to all of them. A rank whose device stays lost takes another one of its host, until
    that is back.
    ``standby``, ``expected`` and ``first_host``: as in `LocalStarter`. With a ``choice`` the planner says on which
    devices of this machine the model runs, and anew when one of them stays lost."""

    def __init__(
        self,
        lab: Lab | None = None,
        *,
        standby: bool = False,
        expected: LocalRanks | None = None,
        choice: DeviceChoice | None = None,
        first_host: int = 0,
    ) -> None:
        self._lab, self._choice, self._first = lab, choice, first_host
        self._plans: dict[tuple[str, ...], Plan] = {}
        """Those of the choice, by what is lost."""
        self._starter = LocalStarter(lab, standby=standby, expected=expected, first_host=first_host)
        self._lost = LostDevices()
        self._returns = DeviceReturns(self._lost, _probe, move_back_seconds(environment()))
        self._spec: ModelSpec | None = None

    def about(self, model: PreparedModel) -> LocalPlanner:
        """Itself, once it knows which model it is for."""
        self._spec = model.spec
        return self

    async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
        self._returns.settled()
        if loss is not None:
            self._lost.note(loss, time.monotonic())
        if loss is not None and self._lab is not None and (missing := await self._missing(self._lab, options)):
            raise ModelUnavailable(
                f"{' and '.join(missing)} cannot be reached from {self._name(0)}, and the model needs "
                f"{min(self._lab.size, options.plan.world_size)} hosts; it returns by itself when the cables are back"
            )
        return await self._around(self._lost, options)

    async def keeping(self, options: RankOptions, now: Deployment, loss: Loss) -> Deployment | None:
        self._returns.settled()
        if self._lost.lasting(loss, time.monotonic()):
            return None
        return None if self._lab is not None and await self._missing(self._lab, now.options) else now

    def _name(self, rank: int) -> str:
        """Of a rank's host."""
        return "" if self._lab is None else self._lab.name((self._first + rank) % self._lab.size)

    async def _missing(self, lab: Lab, options: RankOptions) -> list[str]:
        reached = await _reached(lab, self._first % lab.size)
        hosts = [(self._first + rank) % lab.size for rank in range(min(lab.size, options.plan.world_size))]
        return [lab.name(host) for host in hosts if host not in reached]

    async def _around(self, lost: LostDevices, options: RankOptions, *, running: bool = False) -> Deployment:
        """Without what is ``lost``. ``running``: the model takes memory now. Raises `PlanError`."""
        if self._choice is None or self._spec is None:
            return self._with_devices(lost, options, running=running)
        plan = await self._planned(self._choice, self._spec, lost)
        threads = rank_threads(self._choice.threads, plan.world_size)
        options = replace(options, plan=plan, device=",".join(plan.devices), threads=threads)
        note = lost.told_with(plan.devices) if lost.of("") else ""
        return Deployment(options, self._starter, self._starter, note)

    async def _planned(self, choice: DeviceChoice, spec: ModelSpec, lost: LostDevices) -> Plan:
        gone = lost.of("")
        if gone not in self._plans:
            try:
                self._plans[gone] = await asyncio.to_thread(choice.plan, spec, gone)
            except PlanError as error:
                if not gone:
                    raise
                raise lost.refusal(error) from None
        return self._plans[gone]

    def _with_devices(self, lost: LostDevices, options: RankOptions, *, running: bool) -> Deployment:
        """Raises `PlanError` where the devices that are left have too little memory."""
        size = options.plan.world_size
        hosts = [self._name(rank) for rank in range(size)]
        found = lost.around(options, hosts)
        if found is None:
            return Deployment(options, self._starter, self._starter)
        if self._spec is not None and self._lab is None and not running:
            lost.check_room(self._spec, found, hosts, {"": memory_free()[0]})
        return Deployment(found.options, self._starter, self._starter, found.note)

    async def better(self, options: RankOptions, now: Deployment) -> Deployment | None:
        """With devices that are back: as the user said, or where the planner chose and it is worth it."""
        back = await self._returns.look()
        if not back:
            return None
        try:
            found = await self._around(self._lost.without(back), options, running=True)
        except PlanError as error:
            _log.info("the model stays where it is: %s", error)
            return None
        if found.options.device == now.options.device and found.options.plan == now.options.plan:
            return None
        if self._choice is not None and self._spec is not None:
            plans = found.options.plan, now.options.plan
            if await asyncio.to_thread(self._choice.times_as_fast, self._spec, *plans) < MOVE_WORTH:
                return None
            back = used_of(back, [""] * len(plans[0].devices), plans[0].devices)
        found = self._lost.returning(found, back)
        self._returns.offer(found, back)
        return found

    def chosen(self, deployment: Deployment) -> None:
        self._returns.chosen(deployment)


async def _probe(host: str, device: str) -> str:
    return await probe_here(device)  # also of the hosts of a lab, whose devices are this machine's


async def _reached(lab: Lab, first: int) -> set[int]:
    """The hosts to which cables lead that carry something now, from host ``first`` on."""
    reached, frontier = {first}, [first]
    while frontier:
        host = frontier.pop()
        ahead = [other for other in lab.topology.neighbours(host) if other not in reached]
        cables = [(host, other, cable.address(other)) for other in ahead for cable in lab.between(host, other)]
        answers = await asyncio.gather(*(_answers(lab, host, address) for _, _, address in cables))
        found = {other for (_, other, _), answered in zip(cables, answers, strict=True) if answered}
        reached |= found
        frontier += found
    return reached


async def _answers(lab: Lab, host: int, address: str) -> bool:
    """Whether a connection attempt from ``host`` to a closed port is refused, which a host that is there does."""
    with lab.inside(host):
        attempt = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with attempt:
        attempt.setblocking(False)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await asyncio.get_running_loop().sock_connect(attempt, (address, CLOSED_PORT))
        except ConnectionRefusedError:
            return True
        except OSError:  # also the timeout
            return False
        return True

"""Placement planner: asks at every start which hosts of the cluster answer, and where a model's ranks go on these."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ferrule.agent.placement.cores import HostCores, rank_threads
from ferrule.agent.placement.devices import HostDevices, cluster_of, probe_of
from ferrule.agent.placement.hosts import RankHosts
from ferrule.agent.placement.ranks import ClusterStarter
from ferrule.agent.placement.shared import Part, SharedMemory, lacking, parts_of
from ferrule.agent.placement.standby import ClusterStandby
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.records import Member
from ferrule.config import environment, move_back_seconds
from ferrule.engine.device_names import CPU, device_of
from ferrule.engine.host.device_returns import DeviceReturns
from ferrule.engine.host.lost_devices import DeviceOfHost, LostDevices, used_of
from ferrule.engine.host.migration import MOVE_WORTH
from ferrule.engine.host.placement import Deployment, Loss, RankStarter
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.options import PROMPTS, EngineOptions, RankOptions
from ferrule.errors import ClusterError, FerruleError, ModelUnavailable
from ferrule.model import ModelSpec
from ferrule.plan import (
    BUILT_IN_ENGINE,
    STREAMED,
    Candidate,
    Objective,
    Plan,
    Prediction,
    Question,
    SavedPlan,
    Workload,
    predicted,
    search,
)
from ferrule.plan.cluster import HostReport
from ferrule.plan.explain import WORTH_IT, verdict

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placed:
    """Placement decision: rank r on ``hosts[r]``, and if the planner chose, on ``devices[r]`` there; ``prediction``:
    None where the user said how to split."""

    plan: Plan
    hosts: tuple[str, ...]
    prediction: Prediction | None
    notes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


class ClusterPlanner:
    """`Planner`. ``wanted``: names of hosts, all if empty. With ``options.tensor`` or ``options.pipeline`` given by the
    user (``split``) the ranks are spread over the hosts in turn; with a ``saved`` plan they go where that says; else
    the planner chooses, among the devices that ``options.device`` allows on each. ``beside``: names of hosts of other
    replicas, which may share a machine with these. ``memory``: that it shares with other models."""

    def __init__(
        self,
        home: ClusterHome,
        options: EngineOptions,
        *,
        split: bool,
        wanted: Sequence[str] = (),
        saved: SavedPlan | None = None,
        beside: Sequence[str] = (),
        memory: SharedMemory | None = None,
    ) -> None:
        wanted = saved.hosts if saved is not None else wanted
        self._saved = saved
        self.placed: Placed | None = None
        self.standby = ClusterStandby(home, spread=split) if options.standby else None
        self._home, self._options, self._split = home, options, split
        self._hosts = RankHosts(home, wanted, beside)
        self._here: Sequence[Member] = ()
        """Those that told `shortage` what they have."""
        self._steady = move_back_seconds(environment())
        self._placements: dict[tuple[RankStarter, Plan], Placed] = {}
        self._weighed: tuple[object, Deployment | None] | None = None
        self._spec: ModelSpec | None = None
        self._longest: int | None = None
        self._memory = memory
        self._devices = HostDevices(home, options.device, memory)
        self._reports: dict[str, HostReport] = {}
        """By host id, of every host that was described since the model came up."""
        self._lost = LostDevices()
        self._returns = DeviceReturns(self._lost, self._probe, self._steady)
        self._up: Sequence[Member] = ()
        self._seen: tuple[Loss, Sequence[Member]] | None = None
        """Those that answered after a loss, which need not be asked again for what follows."""
        self._running_on = options.device

    def about(self, model: PreparedModel) -> ClusterPlanner:
        """Itself, once it knows which model it is for: it has to, before the first `place`."""
        self._spec, self._longest = model.spec, model.longest
        return self

    def speed(self) -> float:
        """Tokens per second of one stream as it is placed now; 1 where that is not predicted."""
        prediction = None if self.placed is None else self.placed.prediction
        return 1.0 if prediction is None else prediction.tokens_per_s

    async def place(self, options: RankOptions, loss: Loss | None) -> Deployment:
        seen, self._seen = self._seen, None
        try:
            members = seen[1] if seen is not None and seen[0] is loss else await self._hosts.answering()
        except ClusterError as error:  # an agent that is busy, or starts again, is no reason to give the model up
            raise ModelUnavailable(str(error)) from error
        self._returns.settled()
        if loss is not None:
            self._lost.note(loss, time.monotonic())
        deployment = await self._deployment(options, members, self._lost, fresh=loss is None)
        self.chosen(deployment)
        return deployment

    async def keeping(self, options: RankOptions, now: Deployment, loss: Loss) -> Deployment | None:
        """Where a host is lost: if the user said how to split. Else memory that ranks have kept would count as taken
        when it is planned anew."""
        self._returns.settled()
        if self._lost.lasting(loss, time.monotonic()):
            return None
        try:
            members = await self._hosts.answering()
            self._seen, there = (loss, members), {member.host for member in members}
            if not isinstance(now.starter, ClusterStarter):
                return None
            hosts = [member.host for member in now.starter.members]
            if there.issuperset(hosts):
                return now
            if not self._split or self._saved is not None:
                return None
            found = await self._deployment(options, members, self._lost, fresh=False)
        except FerruleError:
            return None
        moved = now.starter.moved(found.starter)
        if moved is None or found.options != now.options or there.intersection(hosts[rank] for rank in moved):
            return None
        return found

    async def better(self, options: RankOptions, now: Deployment) -> Deployment | None:
        """With hosts that have been up, and devices that have been back for `FERRULE_MOVE_BACK`: on more of them where
        the user said how to split, else where the planner expects tokens to come `MOVE_WORTH` times as fast."""
        if self._steady is None:
            return None
        try:
            self._up = members = await self._hosts.steady(self._steady)
            back = await self._returns.look()
            question = (tuple(member.host for member in members), now.starter, now.options.device, back)
            if self._weighed is None or self._weighed[0] != question:
                lost = self._lost.without(back)
                found = await self._deployment(options, members, lost, fresh=False) if members else None
                self._weighed = question, found if found is not None and self._is_better(found, now, back) else None
        except FerruleError as error:
            _log.info("whether there is a better place for the model cannot be told: %s", error)
            return None
        better = self._weighed[1]
        if better is not None and (placed := self._placement(better)).devices:
            back = used_of(back, placed.hosts, placed.devices)  # it may be better for another reason
        if better is not None and back:
            better = self._lost.returning(better, back)
            self._returns.offer(better, back)
        return better

    def chosen(self, deployment: Deployment) -> None:
        self.placed, self._running_on = self._placement(deployment), deployment.options.device
        self._returns.chosen(deployment)

    async def shortage(self, without: Collection[str] = (), *, fresh: bool = False) -> str | None:
        """Why the cluster's hosts cannot hold the model now, if the models ``without`` were unloaded; None where they
        can. ``fresh``: ask the hosts what is free; else what they told last will do. Of a split that the user gave
        only memory of processors is looked at, since which other device a rank takes is known when it runs."""
        assert self._spec is not None
        assert self._memory is not None
        try:
            if fresh or not self._here:
                self._here = ()
                self._here = await self._described(await self._hosts.answering(), self._lost, fresh=fresh, now=fresh)
            if not self._split:
                await asyncio.to_thread(self._chosen, self._spec, self._context, self._here, self._lost, without)
                return None
        except (ClusterError, ModelUnavailable) as error:
            return str(error)
        if self._options.device != CPU:
            return None
        placed, _ = self._spread(self._spec, self._here)
        devices = [each for report in self._reports.values() for each in (report.device, *report.others)]
        left = [self._memory.left(device, without) for device in devices]
        return lacking(self._parts(placed, (CPU,) * len(placed.hosts)), left) or None

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the ranks hold, where they were placed last."""
        if self.placed is None:
            return ()
        ranks = len(self.placed.hosts)
        return self._parts(self.placed, [device_of(self._running_on, rank, ranks) for rank in range(ranks)])

    def _parts(self, placed: Placed, devices: Sequence[str]) -> tuple[Part, ...]:
        assert self._spec is not None
        options = self._options
        return parts_of(
            self._spec,
            placed.plan,
            placed.hosts,
            devices,
            context=self._context,
            standby=options.standby,
            weights=options.stream_weights,
        )

    @property
    def _context(self) -> int:
        context = self._options.max_context or self._longest
        assert context is not None
        return context

    async def _probe(self, host: str, device: str) -> str:
        return await probe_of(self._home, self._up, host, device)

    def _placement(self, deployment: Deployment) -> Placed:
        return self._placements[deployment.starter, deployment.options.plan]

    def _is_better(self, one: Deployment, now: Deployment, back: Collection[DeviceOfHost]) -> bool:
        new, old = self._placement(one), self._placement(now)
        if one.starter == now.starter and one.options.device == now.options.device:
            return False
        if new.prediction is None or old.prediction is None:
            if one.starter == now.starter:
                return bool(back)
            return len(set(new.hosts)) > len(set(old.hosts))
        return old.prediction.token_seconds >= MOVE_WORTH * new.prediction.token_seconds

    async def _deployment(
        self, options: RankOptions, members: Sequence[Member], lost: LostDevices, *, fresh: bool
    ) -> Deployment:
        """Without what is ``lost``. ``fresh``: as in `HostDevices.described`."""
        assert self._spec is not None
        if self._saved is not None or self._split:
            spread = partial(self._as_saved, self._saved) if self._saved is not None else self._spread
            placed, ranks = spread(self._spec, members)
            cores = await self._hosts.cores([*members, *self._hosts.beside])
        else:
            members = await self._described(members, lost, fresh=fresh)
            # In a thread: it may take a second, in which answers of a model that runs must go on.
            placed, ranks = await asyncio.to_thread(self._chosen, self._spec, options.context, members, lost)
            cores = {host: HostCores(each.host.kernel, each.host.cpus) for host, each in self._reports.items()}
        threads = rank_threads([member.host for member in ranks], cores)
        if self._options.threads is not None:
            threads = [self._options.threads] * len(ranks)
        starter = ClusterStarter(self._home, tuple(ranks), tuple(threads), self._hosts.source)
        self._placements[starter, placed.plan] = placed
        options = replace(options, plan=placed.plan)
        if placed.devices:
            return Deployment(_on(options, placed.devices), starter, self.standby, self._note(placed, lost))
        found = lost.around(options, placed.hosts)
        if found is None:
            return Deployment(options, starter, self.standby)
        lost.check_room(self._spec, found, placed.hosts, await self._hosts.free(ranks))
        return Deployment(found.options, starter, self.standby, found.note)

    async def _described(
        self, members: Sequence[Member], lost: LostDevices, *, fresh: bool, now: bool = False
    ) -> list[Member]:
        """Those that tell what they have, which is noted. ``fresh``, ``now``: as in `HostDevices.described`."""
        reports = await self._devices.described(members, lost, fresh=fresh, now=now, beside=self._hosts.beside)
        self._reports = reports if fresh else self._reports | reports
        there = [member for member in members if member.host in reports]
        if not there:
            raise ModelUnavailable("no host could be asked what it has")
        return there

    def _note(self, placed: Placed, lost: LostDevices) -> str:
        """For people: which devices of the hosts cannot be used, and what stays lost."""
        told = lost.told() and lost.told_with(
            [f"{device} of {host}" for device, host in zip(placed.devices, placed.hosts, strict=True)]
        )
        return "; ".join(filter(None, (*self._devices.notes, told)))

    def _spread(self, spec: ModelSpec, members: Sequence[Member]) -> tuple[Placed, list[Member]]:
        """As the user said: neighbouring ranks on one host where there are more ranks than hosts."""
        plan = self._options.plan(spec)
        used = members[: plan.world_size]
        ranks = [used[rank * len(used) // plan.world_size] for rank in range(plan.world_size)]
        return Placed(plan, tuple(member.name for member in ranks), None), ranks

    def _as_saved(self, saved: SavedPlan, spec: ModelSpec, members: Sequence[Member]) -> tuple[Placed, list[Member]]:
        by_name = {member.name: member for member in members}
        plan = saved.for_model(spec)
        if missing := [name for name in dict.fromkeys(saved.hosts) if name not in by_name]:
            raise ModelUnavailable(f"the plan needs {_and(missing)}, which cannot be reached now")
        return Placed(plan, saved.hosts, None), [by_name[name] for name in saved.hosts]

    def _chosen(
        self,
        spec: ModelSpec,
        context: int,
        members: Sequence[Member],
        lost: LostDevices,
        without: Collection[str] = (),
    ) -> tuple[Placed, list[Member]]:
        """``without``: names of models that are to be unloaded."""
        cluster = cluster_of(members, self._reports)  # also of a host that is away: the others do not grow by that
        if self._memory is not None:
            left = tuple(self._memory.left(device, without) for device in cluster.devices)
            cluster = replace(cluster, devices=left)
        work = Workload(context=context, prompt=min(512, max(1, context // 2)))
        objective: Objective = "ttft" if self._options.hands_over == PROMPTS else "latency"
        question = Question(spec, cluster, work, objective, BUILT_IN_ENGINE)
        answers = search(replace(question, runnable_only=True))
        if self._options.hands_over:  # to or by ranks that keep keys and values whole
            whole = tuple(each for each in answers.candidates if each.plan.context == 1)
            answers = replace(answers, candidates=whole)
        reads = self._options.stream_weights is not None and not any(each.accelerated for each in cluster.devices)
        if answers.best is None and reads:
            answers = search(replace(question, runtime=STREAMED, runnable_only=True))
        if answers.best is None:
            raise ModelUnavailable("; ".join(filter(None, (lost.told(), _missing(question, members)))))
        best = _rather_here(question, answers.best, members[0].name)
        split = next((each for each in answers.candidates if len(each.plan.devices) > 1), None)
        plan = best.plan.because(verdict(question, best, answers.single, split))
        by_name = {member.name: member for member in members}
        chosen = [cluster.by_name[name] for name in plan.devices]
        hosts = tuple(device.host_name for device in chosen)
        devices = tuple(device.device or CPU for device in chosen)
        placed = Placed(plan, hosts, best.prediction, cluster.notes, devices)
        return placed, [by_name[host] for host in hosts]


def _on(options: RankOptions, devices: Sequence[str]) -> RankOptions:
    """With a device for each rank; one name where all have the same."""
    return replace(options, device=",".join(devices if len(set(devices)) > 1 else devices[:1]))


def _rather_here(question: Question, best: Candidate, here: str) -> Candidate:
    """The host on which the model is served, where one device is to hold it and one of this host is about as good."""
    if len(best.plan.devices) > 1 or question.cluster.by_name[best.plan.devices[0]].host_name == here:
        return best
    (stage,) = best.plan.stages
    names = [device.name for device in question.cluster.devices if device.host_name == here]
    for own in (predicted(question, Plan((replace(stage, devices=(name,)),))) for name in names):
        times = question.times_better(best.prediction, own.prediction)
        if own.prediction.fits and times is not None and times < WORTH_IT:
            return own
    return best


def _missing(question: Question, members: Sequence[Member]) -> str:
    from ferrule.plan.explain import shortage

    names = _and([member.name for member in members])
    try:
        reason: FerruleError = shortage(question).error(question.model.name)
    except FerruleError as error:
        reason = error
    return f"{names} cannot hold it: {reason}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

"""Server of one model of a cluster on this host; the model's ranks may be on any host of it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Generic

from ferrule.agent.models.apart import Wanted, alone_with_prompts, divide, wanted_apart
from ferrule.agent.placement.planner import ClusterPlanner, Placed
from ferrule.agent.placement.replicas import replica_hosts
from ferrule.agent.placement.shared import Part, SharedMemory
from ferrule.cluster.client import ask_here
from ferrule.cluster.desired import DesiredModel
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import TellModelState
from ferrule.cluster.reports import RankPlace, ReplicaStatus, ServerState
from ferrule.engine import Engine, EngineOptions, ReplicaHealth, start
from ferrule.engine.apart.start import start_apart_on_hosts
from ferrule.engine.host.prepare import prepared
from ferrule.engine.host.speed import measure_speed
from ferrule.engine.options import ANSWERS, PROMPTS, parse_adapters
from ferrule.engine.replicas.start import ReplicaPlace, start_replicas_apart
from ferrule.engine.types import Progress
from ferrule.errors import ClusterError, FerruleError
from ferrule.plan import parse_plan
from ferrule.secure import derived_key
from ferrule.serve.answer.backlog import parse_queue_time
from ferrule.serve.http.listener import listen
from ferrule.serve.http.request_log import RequestLog
from ferrule.serve.http.self_signed import SelfSigned, own_directory
from ferrule.serve.http.tls import ServerTls
from ferrule.serve.keys.record import keys_path
from ferrule.serve.models import Aliases
from ferrule.serve.server import Served, serve

TELL_SECONDS = 0.3
_OPTIONS = {each.name for each in fields(DesiredModel)} & {each.name for each in fields(EngineOptions)} - {"adapters"}


def options_of(desired: DesiredModel, name: str) -> EngineOptions:
    given = {key: value for key in _OPTIONS if (value := getattr(desired, key)) is not None}
    return EngineOptions(name=name, adapters=parse_adapters(desired.adapters), **given)


def api_key_of(key: bytes, name: str) -> str:
    """API key for clients of a model that is served beyond loopback: every host of the cluster can make it."""
    return f"fk-{derived_key(key, f'api {name}')[:48]}"


def _tls(desired: DesiredModel) -> ServerTls | None:
    """Raises `ConfigError` where this host does not have the files."""
    if desired.certificate is None:
        return None
    if Path(desired.certificate).parent == own_directory():
        return SelfSigned(desired.listen)
    return ServerTls(Path(desired.certificate), None if desired.private_key is None else Path(desired.private_key))


def planner_of(
    home: ClusterHome,
    name: str,
    desired: DesiredModel,
    memory: SharedMemory | None = None,
    beside: Sequence[str] = (),
    hands_over: str = "",
) -> ClusterPlanner:
    options = replace(options_of(desired, name), hands_over=hands_over)
    saved = None if desired.plan is None else parse_plan(desired.plan, f"the plan of the model {name!r}")
    wanted = desired.hosts or ()
    return ClusterPlanner(
        home, options, split=is_split(desired), wanted=wanted, saved=saved, beside=beside, memory=memory
    )


def is_split(desired: DesiredModel) -> bool:
    """Whether the user has said how."""
    return any(given is not None for given in (desired.tensor, desired.pipeline, desired.context_parallel))


class AddressServer(ABC, Generic[Served]):
    """What a record has served at its address, from the record to the answers; the agent is kept informed."""

    def __init__(self, home: ClusterHome, name: str, desired: DesiredModel) -> None:
        self._home, self._name, self._desired = home, name, desired
        self._told: ServerState | None = None

    async def run(self) -> None:
        api_key = api_key_of(self._home.key, self._name) if self._desired.key else None
        tls, desired = _tls(self._desired), self._desired
        encrypted = tls is not None or desired.plain_http
        requests = None if desired.request_log is None else RequestLog(desired.request_log)
        listener = listen(desired.listen, desired.port, api_key=api_key, encrypted=encrypted)
        telling = asyncio.create_task(self._tell())
        try:
            await serve(
                self.load,
                listener,
                api_key=api_key,
                keys=keys_path(),
                requests=requests,
                tls=tls,
                origins=desired.origins,
                image_urls=desired.image_urls,
                max_queue_seconds=parse_queue_time(desired.max_queue_time),
                tool_parser=desired.tool_parser,
                aliases=Aliases.parse(desired.aliases),
                on_ready=lambda _: None,
            )
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    @abstractmethod
    async def load(self) -> Served: ...

    @abstractmethod
    def state(self) -> ServerState: ...

    @abstractmethod
    def measure_again(self) -> None:
        """Measure the speed again where a model has moved, as soon as no request runs."""

    async def _tell(self) -> None:
        """Keep the agent informed. One that does not listen is on its way out, and ends this process itself."""
        while True:
            self.measure_again()
            state = self.state()
            if state != self._told:
                with suppress(ClusterError):
                    await ask_here(self._home, TellModelState(self._name, state))
                    self._told = state
            await asyncio.sleep(TELL_SECONDS)


class ModelServer(AddressServer[Engine]):
    """Server of one model. ``memory``: which it shares with others."""

    def __init__(self, home: ClusterHome, name: str, desired: DesiredModel, memory: SharedMemory | None = None) -> None:
        super().__init__(home, name, desired)
        self._options = options_of(desired, name)
        self._memory = memory
        self._planners = [planner_of(home, name, desired, memory)]
        """Of each replica."""
        self._engine: Engine | None = None
        self._measured: float | None = None
        self._measured_at: list[Placed | None] = []
        """Placement of the model when its speed was measured."""
        self._measuring: asyncio.Task[None] | None = None
        self._apart = ""
        """Why its prompts are computed by hosts of their own; empty where they are not."""
        self._detail = "planning"
        self._progress: dict[str, Progress] = {}

    @property
    def parts(self) -> tuple[Part, ...]:
        """Memory of its ranks."""
        return tuple(part for planner in self._planners for part in planner.parts)

    async def load(self, *, measured: bool = True) -> Engine:
        """``measured``: only when its speed is known."""
        engine: Engine | None = None
        if self._desired.replicas is not None:
            engine = await self._load_replicas(self._desired.replicas)
        elif (wanted := wanted_apart(self._desired)) is not None:
            engine = await self._load_apart(wanted)
        if engine is None:
            engine = await start(self._options, on_progress=self._heard, planner=self._planners[0].about)
        if measured:
            await self._measure(engine)
        self._engine = engine
        return engine

    async def _load_replicas(self, count: int) -> Engine:
        model = await prepared(self._options, on_progress=self._heard)
        desired = self._desired
        groups = await replica_hosts(
            self._home, self._options, desired.hosts or (), count, model.spec, split=is_split(desired)
        )
        everyone = [name for group in groups for name in group]
        self._planners = [
            planner_of(
                self._home,
                self._name,
                replace(desired, hosts=group),
                self._memory,
                beside=[name for name in everyone if name not in group],
            )
            for group in groups
        ]
        places = [ReplicaPlace(self._options, each.about, each.speed) for each in self._planners]
        return await start_replicas_apart(model, places, self._heard)

    async def _load_apart(self, wanted: Wanted) -> Engine | None:
        """None where the planner finds that it does not pay."""
        model = await prepared(self._options, on_progress=self._heard)
        divided = await divide(self._home, self._options, self._desired, wanted, model)
        if divided is None:
            return None
        self._apart = divided.reason
        self._planners = [
            planner_of(self._home, self._name, one, self._memory, beside=other.hosts or (), hands_over=role)
            for role, one, other in (
                (ANSWERS, divided.answers, divided.prompts),
                (PROMPTS, divided.prompts, divided.answers),
            )
        ]
        answers, prompts = self._planners
        return await start_apart_on_hosts(
            self._options, model, answers.about, prompts.about, self._heard, device=divided.prompts.device
        )

    @property
    def _placed(self) -> list[Placed | None]:
        return [planner.placed for planner in self._planners]

    async def _measure(self, engine: Engine) -> None:
        """The speed is for people to see: that it cannot be measured is no error."""
        self._measured, self._measured_at = None, self._placed
        with suppress(FerruleError):
            self._measured = await measure_speed(engine)

    def measure_again(self) -> None:
        engine, busy = self._engine, self._measuring is not None and not self._measuring.done()
        if engine is None or busy or self._measured_at == self._placed:
            return
        health = engine.health()
        if health.state == "ready" and not health.running and not health.waiting:
            self._measuring = asyncio.create_task(self._measure(engine), name="measuring")

    def _heard(self, progress: Progress) -> None:
        self._progress[progress.who] = progress
        done = sum(each.done for each in self._progress.values())
        total = sum(each.total for each in self._progress.values())
        self._detail = f"{progress.phase} ({done / total:.0%})" if total and done < total else progress.phase

    def state(self) -> ServerState:
        placed, engine = [each for each in self._placed if each is not None], self._engine
        if self._apart and self._planners[0].placed is None:
            placed = []  # where answers come from is not known yet
        found = ServerState(state="loading", detail=self._detail)
        if placed:
            answering = placed[:1] if self._apart else placed
            predicted = [each.prediction.tokens_per_s for each in answering if each.prediction is not None]
            found = replace(
                found,
                plan=f"{placed[0].plan.reason.rstrip('.')}. {self._apart}" if self._apart else placed[0].plan.reason,
                strategy=placed[0].plan.strategy + ", prompts apart" * bool(self._apart),
                hosts=tuple(host for each in placed for host in each.hosts),
                predicted=max(predicted, default=None),
            )
        if engine is None:
            return found
        health = engine.health()
        return replace(
            found,
            state=health.state,
            detail=health.error or "",
            note="; ".join(filter(None, (health.note, alone_with_prompts(health), engine.tokenizer.warning))),
            running=health.running,
            waiting=health.waiting,
            recoveries=health.recoveries,
            standby=sum(each.standby.kept for each in self._planners if each.standby is not None),
            measured=1 / self._measured if self._measured is not None and self._measured_at == self._placed else None,
            ranks=tuple(RankPlace(each.rank, each.host, each.transports) for each in engine.ranks),
            replicas=tuple(map(_replica, health.replicas, self._placed)),
        )


def _replica(health: ReplicaHealth, placed: Placed | None) -> ReplicaStatus:
    strategy, hosts = (None, ()) if placed is None else (placed.plan.strategy, placed.hosts)
    return ReplicaStatus(health.state, health.error or "", strategy, hosts, health.running, health.waiting)

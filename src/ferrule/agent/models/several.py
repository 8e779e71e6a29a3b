"""Server of several models of a cluster behind one address of this host: each is placed when it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from ferrule.agent.models.server import AddressServer, ModelServer, options_of, planner_of
from ferrule.agent.placement.planner import ClusterPlanner
from ferrule.agent.placement.shared import Part, SharedMemory, first_to_go
from ferrule.cluster.desired import DesiredModel, OfferedModel
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.reports import OfferedState, ServerState
from ferrule.engine import Engine
from ferrule.engine.host.prepare import prepared
from ferrule.engine.types import Progress
from ferrule.serve.models import Aliases
from ferrule.serve.models.many import ManyModels
from ferrule.serve.models.memory import Held, movable
from ferrule.serve.models.offer import Need, Offer, Unloaded, is_loaded, state_of, together

_log = logging.getLogger(__name__)
_HOLDS = ("ready", "recovering", "loading")
"""States of an engine in which its ranks take memory, or soon will again."""


class ClusterRoom:
    """`Room` of a cluster's hosts. ``planner``: a new one of the model of that name, which knows what others hold."""

    def __init__(self, planner: Callable[[str], ClusterPlanner]) -> None:
        self._planner_of = planner
        self._asked: ClusterPlanner | None = None
        """That of the last `shortage`, with what the hosts said."""

    async def shortage(self, name: str, need: Need, held: Sequence[Held]) -> str | None:
        self._asked = self._planner_of(name)
        reason = await self._asked.shortage(fresh=True)
        return None if reason is None else f"{name!r} does not fit into the cluster's memory now: {reason}"

    async def first_out(self, name: str, need: Need, held: Sequence[Held], *, also_busy: bool = False) -> Held | None:
        planner = self._asked
        assert planner is not None, "to be asked where there is a shortage"

        async def fits(gone: Sequence[Held]) -> bool:
            return await planner.shortage([each.name for each in gone]) is None

        return await first_to_go(movable(held, also_busy=also_busy), fits)


class SeveralServer(AddressServer[ManyModels]):
    """Server of several models, which are loaded on demand."""

    def __init__(self, home: ClusterHome, name: str, desired: DesiredModel) -> None:
        super().__init__(home, name, desired)
        self._servers: dict[str, ModelServer] = {}
        """Of each model that was loaded, by name: that of its last load."""
        self._planners: dict[str, Callable[[], ClusterPlanner]] = {}
        self._models: ManyModels | None = None
        self._started = False
        self._detail = "planning"

    async def load(self) -> ManyModels:
        aliases, offers = Aliases.parse(self._desired.aliases), []
        for each in self._desired.models:
            self._detail = f"{each.name}: reading its files"
            offers.append(await self._offer(each))
            aliases = aliases.also(each.name, each.aliases)
        room = ClusterRoom(lambda name: self._planners[name]())
        self._models = ManyModels(offers, room, aliases=aliases, tell=_log.info)
        await self._models.start()
        self._started = True
        return self._models

    async def _offer(self, one: OfferedModel) -> Offer:
        desired = self._desired.only(one)
        options = options_of(desired, one.name)
        memory = SharedMemory(one.name, self._loaded, self._desired.memory_limit, standby=options.standby)
        model = await prepared(options, on_progress=lambda each: self._heard(one.name, each))

        async def load() -> Engine:
            server = self._servers[one.name] = ModelServer(self._home, one.name, desired, memory)
            return await server.load(measured=False)  # clients wait

        self._planners[one.name] = lambda: planner_of(self._home, one.name, desired, memory).about(model)
        need = Need.of(options, model, options.max_context or model.longest)
        return Offer(Unloaded.of(options, model), load, need, one.pin, one.ttl, one.preload, one.tool_parser)

    def _heard(self, name: str, progress: Progress) -> None:
        self._detail = f"{name}: {progress.phase} ({progress.done / max(1, progress.total):.0%})"

    def _running(self) -> dict[str, Engine]:
        """Engines of the models that are in memory."""
        states = [] if self._models is None else self._models.states()
        return {offer.name: engine for offer, engine in states if is_loaded(engine)}

    def _loaded(self) -> Mapping[str, Sequence[Part]]:
        running = self._running().items()
        return {name: self._servers[name].parts for name, engine in running if state_of(engine) in _HOLDS}

    def measure_again(self) -> None:
        for name in self._running():
            self._servers[name].measure_again()

    def state(self) -> ServerState:
        if self._models is None:
            return ServerState(state="loading", detail=self._detail)
        models = tuple(self._state_of(offer, engine) for offer, engine in self._models.states())
        busy = next((each for each in models if each.state == "loading"), models[0])
        state = together([each.state for each in models]) if self._started else "loading"
        return ServerState(
            state=state,
            detail=f"{busy.name}: {busy.detail}" if state != "ready" and busy.detail else "",
            running=sum(each.running for each in models),
            waiting=sum(each.waiting for each in models),
            recoveries=sum(each.recoveries for each in models),
            standby=sum(each.standby for each in models),
            models=models,
        )

    def _state_of(self, offer: Offer, engine: Engine) -> OfferedState:
        state, error = state_of(engine), engine.health().error or ""
        told = ServerState(state=state, detail=error)
        if is_loaded(engine) or (state == "loading" and offer.name in self._servers):
            told = self._servers[offer.name].state()
        return OfferedState(**vars(told), name=offer.name, memory=offer.need.total, pinned=offer.pin)

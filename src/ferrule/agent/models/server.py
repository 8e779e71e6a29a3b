"""Serve one model of a cluster on this host: ``python -m ferrule.agent.models.server DIRECTORY NAME``.

The agent starts it, keeps it running, and is told how it is. The model's ranks may be on any host of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ferrule.agent.log import log_to
from ferrule.agent.placement.planner import ClusterPlanner, Placed
from ferrule.cluster.client import ask_here
from ferrule.cluster.desired import DesiredModel
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetModels, TellModelState
from ferrule.cluster.reports import RankPlace, ServerState
from ferrule.engine import Engine, EngineOptions, start
from ferrule.engine.host.speed import measure_speed
from ferrule.engine.options import parse_adapters
from ferrule.engine.types import Progress
from ferrule.errors import ClusterError, FerruleError
from ferrule.plan import parse_plan
from ferrule.secure import derived_key
from ferrule.serve.http.listener import listen
from ferrule.serve.http.request_log import RequestLog
from ferrule.serve.http.self_signed import SelfSigned, own_directory
from ferrule.serve.http.tls import ServerTls
from ferrule.serve.keys.record import keys_path
from ferrule.serve.server import serve

log = logging.getLogger(__name__)

TELL_SECONDS = 0.3
_OPTIONS = (
    "dtype", "weights", "device", "max_context", "threads", "tensor", "pipeline", "self_test", "standby", "encrypt",
    "graphs", "prefix_cache", "prefix_disk",
)  # fmt: skip


def options_of(desired: DesiredModel, name: str) -> EngineOptions:
    given = {key: value for key in _OPTIONS if (value := getattr(desired, key)) is not None}
    return EngineOptions(model=desired.model, name=name, adapters=parse_adapters(desired.adapters), **given)


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


class ModelServer:
    """One model, from its record to the answers."""

    def __init__(self, home: ClusterHome, name: str, desired: DesiredModel) -> None:
        self._home, self._name, self._desired = home, name, desired
        self._options = options_of(desired, name)
        split = desired.tensor is not None or desired.pipeline is not None
        saved = None if desired.plan is None else parse_plan(desired.plan, f"the plan of the model {name!r}")
        self._planner = ClusterPlanner(home, self._options, split=split, wanted=desired.hosts or (), saved=saved)
        self._engine: Engine | None = None
        self._measured: float | None = None
        self._measured_at: Placed | None = None
        """Placement of the model when its speed was measured."""
        self._measuring: asyncio.Task[None] | None = None
        self._detail = "planning"
        self._progress: dict[int, Progress] = {}
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
                self._load,
                listener,
                api_key=api_key,
                keys=keys_path(),
                requests=requests,
                tls=tls,
                origins=desired.origins,
                on_ready=lambda _: None,
            )
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _load(self) -> Engine:
        engine = await start(self._options, on_progress=self._heard, planner=self._planner.about)
        await self._measure(engine)
        self._engine = engine
        return engine

    async def _measure(self, engine: Engine) -> None:
        """The speed is for people to see: that it cannot be measured is no error."""
        self._measured, self._measured_at = None, self._planner.placed
        with suppress(FerruleError):
            self._measured = await measure_speed(engine)

    def measure_again(self) -> None:
        """Measure the speed again where the model has moved, as soon as no request runs."""
        engine, busy = self._engine, self._measuring is not None and not self._measuring.done()
        if engine is None or busy or self._measured_at == self._planner.placed:
            return
        health = engine.health()
        if health.state == "ready" and not health.running and not health.waiting:
            self._measuring = asyncio.create_task(self._measure(engine), name="measuring")

    def _heard(self, progress: Progress) -> None:
        self._progress[progress.rank] = progress
        done = sum(each.done for each in self._progress.values())
        total = sum(each.total for each in self._progress.values())
        self._detail = f"{progress.phase} ({done / total:.0%})" if total and done < total else progress.phase

    def state(self) -> ServerState:
        placed, engine = self._planner.placed, self._engine
        found = ServerState(state="loading", detail=self._detail)
        if placed is not None:
            prediction = placed.prediction
            found = replace(
                found,
                plan=placed.plan.reason,
                strategy=placed.plan.strategy,
                hosts=placed.hosts,
                predicted=None if prediction is None else prediction.tokens_per_s,
            )
        if engine is None:
            return found
        health = engine.health()
        return replace(
            found,
            state=health.state,
            detail=health.error or "",
            note="; ".join(filter(None, (health.note, engine.tokenizer.warning))),
            running=health.running,
            waiting=health.waiting,
            recoveries=health.recoveries,
            standby=0 if self._planner.standby is None else self._planner.standby.kept,
            measured=1 / self._measured if self._measured is not None and self._measured_at == placed else None,
            ranks=tuple(RankPlace(each.rank, each.host, each.transports) for each in engine.ranks),
        )

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


async def _run(home: ClusterHome, name: str) -> None:
    desired = next((each.wanted for each in await ask_here(home, GetModels()) if each.name == name), None)
    if desired is None:
        raise ClusterError(f"no model {name!r} is to be served on this host")
    await ModelServer(home, name, desired).run()


def main(arguments: Sequence[str]) -> int:
    directory, name = Path(arguments[0]), arguments[1]
    log_to(None)
    for chatty in ("httpx", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    home = ClusterHome(directory.name, directory.parent)
    try:
        asyncio.run(_run(home, name))
    except FerruleError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

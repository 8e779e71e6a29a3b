"""Serve one model of a cluster on this host: ``python -m ferrule.agent.models.server DIRECTORY NAME``.

The agent starts it, keeps it running, and is told how it is. The model's ranks may be on any host of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ferrule.agent.placement.planner import ClusterPlanner
from ferrule.cluster.client import ask_here
from ferrule.cluster.home import ClusterHome
from ferrule.engine import Engine, EngineOptions, start
from ferrule.engine.host.speed import measure_speed
from ferrule.engine.types import Progress
from ferrule.errors import ClusterError, ConfigError, FerruleError
from ferrule.secure import derived_key
from ferrule.serve.server import listen, serve

log = logging.getLogger(__name__)

TELL_SECONDS = 0.3
_OPTIONS = ("dtype", "max_context", "threads", "tensor", "pipeline", "self_test", "spares")


def options_of(wanted: Mapping[str, Any], name: str) -> EngineOptions:
    """From the record of a model. Raises `ConfigError`."""
    given = {key: wanted[key] for key in _OPTIONS if wanted.get(key) is not None}
    try:
        return EngineOptions(model=str(wanted["model"]), name=name, **given)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the record of the model {name!r} cannot be used: {error!r}") from None


def api_key_of(key: bytes, name: str) -> str:
    """What clients must send to a model that is served beyond loopback: every host of the cluster can make it."""
    return f"fk-{derived_key(key, f'api {name}')[:48]}"


class ModelServer:
    """One model, from its record to the answers."""

    def __init__(self, home: ClusterHome, name: str, wanted: Mapping[str, Any]) -> None:
        self._home, self._name, self._wanted = home, name, wanted
        self._options = options_of(wanted, name)
        split = wanted.get("tensor") is not None or wanted.get("pipeline") is not None
        self._planner = ClusterPlanner(home, self._options, split=split, wanted=wanted.get("hosts") or ())
        self._engine: Engine | None = None
        self._measured: float | None = None
        self._detail = "planning"
        self._progress: dict[int, Progress] = {}
        self._told: dict[str, Any] = {}

    async def run(self) -> None:
        host, port = str(self._wanted.get("listen") or "127.0.0.1"), int(self._wanted["port"])
        with_key = bool(self._wanted.get("key"))
        api_key = api_key_of(self._home.key, self._name) if with_key else None
        listener = listen(host, port, api_key=api_key)
        telling = asyncio.create_task(self._tell())
        try:
            await serve(self._load, listener, api_key=api_key, on_ready=lambda _: None)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _load(self) -> Engine:
        engine = await start(self._options, on_progress=self._heard, planner=self._planner.about)
        with suppress(FerruleError):  # the speed is for people to see
            self._measured = await measure_speed(engine)
        self._engine = engine
        return engine

    def _heard(self, progress: Progress) -> None:
        self._progress[progress.rank] = progress
        done = sum(each.done for each in self._progress.values())
        total = sum(each.total for each in self._progress.values())
        self._detail = f"{progress.phase} ({done / total:.0%})" if total and done < total else progress.phase

    def state(self) -> dict[str, Any]:
        placed = self._planner.placed
        found: dict[str, Any] = {"state": "loading", "detail": self._detail}
        if placed is not None:
            prediction = placed.prediction
            found |= {
                "plan": placed.plan.reason,
                "strategy": placed.plan.strategy,
                "hosts": list(placed.hosts),
                "predicted": None if prediction is None else prediction.tokens_per_s,
            }
        if self._engine is not None:
            health = self._engine.health()
            found |= {
                "state": health.state,
                "detail": health.error or "",
                "running": health.running,
                "waiting": health.waiting,
                "recoveries": health.recoveries,
                "spares": 0 if self._planner.spares is None else self._planner.spares.kept,
                "measured": None if self._measured is None else 1 / self._measured,
                "ranks": [{"rank": each.rank, "host": each.host, "transports": each.transports}
                          for each in self._engine.ranks],
            }  # fmt: skip
        return found

    async def _tell(self) -> None:
        """Keep the agent informed. One that does not listen is on its way out, and ends this process itself."""
        while True:
            state = self.state()
            if state != self._told:
                with suppress(ClusterError):
                    await ask_here(self._home, "model_state", name=self._name, state=state)
                    self._told = state
            await asyncio.sleep(TELL_SECONDS)


async def wanted_of(home: ClusterHome, name: str) -> Mapping[str, Any]:
    """The record of a model that is to be served here. Raises `ClusterError`."""
    for each in await ask_here(home, "models"):
        if each["name"] == name:
            found: Mapping[str, Any] = each["wanted"]
            return found
    raise ClusterError(f"no model {name!r} is to be served on this host")


async def _run(home: ClusterHome, name: str) -> None:
    await ModelServer(home, name, await wanted_of(home, name)).run()


def main(arguments: Sequence[str]) -> int:
    directory, name = Path(arguments[0]), arguments[1]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
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

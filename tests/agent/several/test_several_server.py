"""Server of several models of a cluster, with scripted engines: what it tells, what it loads, and why it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, byte_level, demo_spec, tensor_plan

from agents import SECONDS, desired, make_home
from ferrule.agent.models import several
from ferrule.agent.models.several import SeveralServer
from ferrule.agent.placement.shared import Part
from ferrule.cluster.desired import OfferedModel
from ferrule.cluster.reports import ServerState
from ferrule.engine import SamplingParams
from ferrule.errors import ConfigError
from ferrule.model import Embedding
from ferrule.serve.app import create_app

TOKENIZER = byte_level()
PREPARED = SimpleNamespace(
    directory=Path("x"), spec=demo_spec(), plan=tensor_plan(), tokenizer=TOKENIZER,
    default_sampling=SamplingParams(), embedding=Embedding(), longest=demo_spec().max_context, images=None,
)  # fmt: skip
OFFERED = (
    OfferedModel(name="a", model="x", pin=True),
    OfferedModel(name="b", model="x", aliases=("claude-*",), tensor=2),
    OfferedModel(name="c", model="x"),
)


class Hosts:
    """Hosts on which two models have room: ``engines`` that were loaded, and the records by which they were."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.engines: dict[str, FakeEngine] = {}
        self.records: dict[str, Any] = {}
        hosts = self

        class Loading:
            """Stands for the server of one model."""

            def __init__(self, home: object, name: str, record: Any, memory: Any) -> None:
                self.name, self.parts = name, (Part("hosta", "cpu", 1, 0),)
                hosts.records[name], self.memory = record, memory

            async def load(self, *, measured: bool) -> FakeEngine:
                hosts.engines[self.name] = FakeEngine(name=self.name, tokenizer=TOKENIZER)
                return hosts.engines[self.name]

            def state(self) -> ServerState:
                health = hosts.engines[self.name].health()
                return ServerState(state=health.state, hosts=("hosta",), recoveries=1, running=health.running)

            def measure_again(self) -> None:
                pass

        def planner_of(home: object, name: str, record: object, memory: Any) -> Any:
            async def shortage(without: Collection[str] = (), *, fresh: bool = False) -> str | None:
                others = memory._loaded().keys() - {*without, name}
                return "hosta lacks 1 GiB" if len(others) >= 2 else None

            planner = SimpleNamespace(shortage=shortage)
            planner.about = lambda model: planner
            return planner

        async def prepared(options: object, on_progress: object) -> Any:
            return PREPARED

        patch.setattr(several, "prepared", prepared)
        patch.setattr(several, "planner_of", planner_of)
        patch.setattr(several, "ModelServer", Loading)


def test_models_are_loaded_where_the_hosts_have_room_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(monkeypatch)
    home = make_home(tmp_path, "here")
    record = desired(home.settings.host, models=OFFERED, aliases=("gpt-*=c",), hosts=("hosta",))

    async def scene() -> None:
        server = SeveralServer(home, "models", record)
        assert server.state().state == "loading"
        models = await server.load()
        transport = httpx.ASGITransport(create_app(models, api_key=None))

        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=10) as http:

            async def ask(model: str) -> Any:
                body = {"model": model, "prompt": "Hi", "max_tokens": 2}
                answer = await http.post("/v1/completions", json=body)
                return answer.json()["model"] if answer.status_code == 200 else (answer.status_code, answer.text)

            def states() -> list[tuple[str, str, tuple[str, ...]]]:
                return [(each.name, each.state, each.hosts) for each in server.state().models]

            assert await ask("claude-opus") == "b"
            assert states() == [("a", "ready", ("hosta",)), ("b", "ready", ("hosta",)), ("c", "unloaded", ())]
            assert (server.state().state, server.state().recoveries, server.state().models[0].pinned) == (
                "ready",
                2,
                True,
            )
            one = hosts.records["b"]
            assert (one.tensor, one.models, one.aliases, one.hosts) == (2, (), (), ("hosta",))
            assert await ask("gpt-5") == "c"
            assert hosts.engines["b"].closed
            assert [state for _, state, _ in states()] == ["ready", "unloaded", "ready"]
            hosts.engines["c"].hold = asyncio.Event()
            models._busy_seconds = 0.0
            asked = asyncio.create_task(ask("c"))
            async with asyncio.timeout(SECONDS):
                while len(hosts.engines["c"].calls) < 2:
                    await asyncio.sleep(0)
            status, text = await ask("b")
            assert status == 503
            assert "'b' does not fit into the cluster's memory now: hosta lacks 1 GiB; in memory are 'a'" in text
            assert "pinned" in text
            assert "in use by 1 request" in text
            hosts.engines["c"].hold.set()
            assert await asked == "c"
        await models.aclose()
        assert all(engine.closed for engine in hosts.engines.values())

    asyncio.run(scene())
    wrong = SeveralServer(home, "models", desired(home.settings.host, models=OFFERED, aliases=("claude-*=a",)))
    with pytest.raises(ConfigError, match="given twice"):
        asyncio.run(wrong.load())

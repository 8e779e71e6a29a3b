"""Reports of a model server on itself."""

import asyncio
from types import SimpleNamespace

from agents import desired, make_home, until
from ferrule.agent.models import server as model_server
from ferrule.agent.models.server import ModelServer, options_of
from ferrule.engine.options import Adapter
from ferrule.engine.types import Health

HERE = SimpleNamespace(plan=SimpleNamespace(reason="", strategy="tensor"), hosts=("a", "b"), prediction=None)
ELSEWHERE = SimpleNamespace(plan=SimpleNamespace(reason="", strategy="single"), hosts=("a",), prediction=None)


def test_the_speed_is_that_of_the_place_where_the_model_is(tmp_path, monkeypatch):
    seconds = iter([0.1, 0.05])

    async def measure(engine):
        return next(seconds)

    monkeypatch.setattr(model_server, "measure_speed", measure)
    home = make_home(tmp_path, "here")

    async def scene():
        server = ModelServer(home, "demo", desired(home.settings.host))
        server._planner.placed = HERE
        health = Health("ready", running=1)
        tokenizer = SimpleNamespace(warning="the chat template cannot be used")
        engine = SimpleNamespace(health=lambda: health, ranks=(), tokenizer=tokenizer)
        await server._measure(engine)
        server._engine = engine
        assert (server.state().hosts, server.state().measured) == (("a", "b"), 10.0)
        server.measure_again()
        assert server._measuring is None
        server._planner.placed = ELSEWHERE
        server.measure_again()
        assert (server.state().hosts, server.state().measured) == (("a",), None)  # not the old one; it is busy
        assert server._measuring is None
        health = Health("ready")
        server.measure_again()
        await until(server._measuring.done)
        assert server.state().measured == 20.0
        assert server.state().note == "the chat template cannot be used"
        health = Health("ready", note="cuda:0 stays lost")
        assert server.state().note == "cuda:0 stays lost; the chat template cannot be used"
        health = Health("failed", "no memory")
        assert server.state().detail == "no memory"

    asyncio.run(scene())


def test_adapters_are_those_of_the_record():
    given = options_of(desired("0" * 32, adapters=("poet=owner/poet", "sql=owner/sql"), tensor=2), "demo")
    assert given.adapters == (Adapter("poet", "owner/poet"), Adapter("sql", "owner/sql"))
    assert (given.name, given.tensor) == ("demo", 2)

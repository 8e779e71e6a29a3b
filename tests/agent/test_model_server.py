"""Reports of a model server on itself."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from agents import desired, make_home, until
from ferrule.agent.models import server as model_server
from ferrule.agent.models.server import ModelServer, options_of
from ferrule.cluster.reports import ReplicaStatus
from ferrule.engine.options import Adapter
from ferrule.engine.types import Health, Progress, ReplicaHealth
from ferrule.serve.http.self_signed import SelfSigned, own_directory

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
        server._planners[0].placed = HERE
        health = Health("ready", running=1)
        tokenizer = SimpleNamespace(warning="the chat template cannot be used")
        engine = SimpleNamespace(health=lambda: health, ranks=(), tokenizer=tokenizer)
        await server._measure(engine)
        server._engine = engine
        assert (server.state().hosts, server.state().measured) == (("a", "b"), 10.0)
        server.measure_again()
        assert server._measuring is None
        server._planners[0].placed = ELSEWHERE
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


def test_each_replica_is_placed_on_hosts_of_its_own_and_told_of(tmp_path, monkeypatch):
    home = make_home(tmp_path, "here")
    replicas = (ReplicaHealth("ready", running=2), ReplicaHealth("waiting", "none of the hosts c answers"))
    health = Health("ready", note="replica 2 of 2 is waiting", running=2, replicas=replicas)
    begun = []

    async def groups(_home, options, wanted, count, spec, *, split):
        assert (wanted, count, spec, split) == (("a", "b", "c"), 2, "spec", False)
        return (("a", "b"), ("c",))

    async def start(model, places, on_progress):
        begun.extend(places)
        for rank in range(2):
            on_progress(Progress(rank, "load", 1, 4, replica=rank + 1))
        return SimpleNamespace(health=lambda: health, ranks=(), tokenizer=SimpleNamespace(warning=None))

    async def measure(engine):
        return 0.1

    async def prepared(options, on_progress):
        return SimpleNamespace(spec="spec")

    monkeypatch.setattr(model_server, "prepared", prepared)
    monkeypatch.setattr(model_server, "replica_hosts", groups)
    monkeypatch.setattr(model_server, "start_replicas_apart", start)
    monkeypatch.setattr(model_server, "measure_speed", measure)
    server = ModelServer(home, "demo", desired(home.settings.host, replicas=2, hosts=("a", "b", "c")))
    asyncio.run(server.load())
    assert len(begun) == 2
    assert [planner._hosts._wanted for planner in server._planners] == [("a", "b"), ("c",)]
    assert [planner._hosts._names_beside for planner in server._planners] == [{"c"}, {"a", "b"}]
    assert server._detail == "load (25%)"
    server._planners[0].placed = HERE
    state = server.state()
    assert (state.state, state.hosts, state.note) == ("ready", ("a", "b"), "replica 2 of 2 is waiting")
    assert state.replicas == (
        ReplicaStatus("ready", "", "tensor", ("a", "b"), 2),
        ReplicaStatus("waiting", "none of the hosts c answers"),
    )


def test_adapters_are_those_of_the_record():
    two = ("poet=owner/poet", "sql=owner/sql")
    given = options_of(desired("0" * 32, adapters=two, tensor=2, kv_cache="int8"), "demo")
    assert given.adapters == (Adapter("poet", "owner/poet"), Adapter("sql", "owner/sql"))
    assert (given.name, given.tensor, given.kv_cache) == ("demo", 2, "int8")


def test_clients_need_the_keys_of_this_host_and_are_served_with_its_own_certificate(tmp_path, monkeypatch):
    monkeypatch.setenv("FERRULE_STATE", str(tmp_path))
    monkeypatch.setenv("FERRULE_KEYS_FILE", str(tmp_path / "keys.json"))
    given = {}

    async def serve(_load, listener, **options):
        listener.close()
        given.update(options)

    async def tell(_self):
        pass

    monkeypatch.setattr(model_server, "serve", serve)
    monkeypatch.setattr(ModelServer, "_tell", tell)
    home, own = make_home(tmp_path, "here"), own_directory()
    wanted = replace(
        desired(home.settings.host, aliases=("gpt-*=demo",), tool_parser="hermes"),
        port=0,
        certificate=str(own / "cert.pem"),
        request_log=str(tmp_path / "log"),
    )
    asyncio.run(ModelServer(home, "demo", wanted).run())
    assert isinstance(given["tls"], SelfSigned)
    assert given["keys"] == tmp_path / "keys.json"
    assert (given["aliases"].names, given["tool_parser"]) == ({"gpt-*": "demo"}, "hermes")
    given["requests"].close()
    assert (tmp_path / "log").exists()

"""Several models behind one address, with scripted engines: routing, loads, evictions, leases, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, byte_level, demo_spec, tensor_plan

from ferrule.engine import EngineOptions, SamplingParams
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.options import AS_NEEDED
from ferrule.errors import ConfigError, EngineError, ModelUnavailable
from ferrule.plan import make_plan, rank_memory
from ferrule.serve.app import create_app
from ferrule.serve.keys.record import ApiKey, add_key, digest_of, new_key
from ferrule.serve.models import Aliases
from ferrule.serve.models.many import ManyModels
from ferrule.serve.models.memory import Held, Memory
from ferrule.serve.models.offer import Need, Offer, Unloaded

GIB = 2**30
TOKENIZER = byte_level()


class Fleet:
    """Models a, b and c of 2, 2 and 3 GiB, with memory for 5: for any two, not for all. ``engines``: those that were
    loaded, in order. ``broken``: names whose loading fails; ``gate``: what loading waits for."""

    def __init__(self, *, limit: int | None = 5 * GIB, free: int = 100 * GIB, **options: Any) -> None:
        self.now, self.engines, self.told = 0.0, list[FakeEngine](), list[str]()
        self.broken: dict[str, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        settings = options.pop("settings", {})
        self.free = free
        sizes = {"acme/a": 2, "acme/b": 2, "acme/c": 3}
        offers = [self._offer(name, size * GIB, **settings.get(name, {})) for name, size in sizes.items()]
        self.room = Memory(
            limit, lambda: self.free - sum(sizes[each] * GIB for each in sizes if each[-1] in self.loaded)
        )
        self.models = ManyModels(
            offers,
            self.room,
            clock=lambda: self.now,
            tell=self.told.append,
            **{"busy_seconds": 0.0, **options},
        )

    def _offer(self, name: str, size: int, **settings: Any) -> Offer:
        async def load() -> FakeEngine:
            await self.gate.wait()
            if name in self.broken:
                raise self.broken[name]
            self.engines.append(FakeEngine(name=name, tokenizer=TOKENIZER))
            return self.engines[-1]

        unloaded = Unloaded(name, 7, demo_spec(), tensor_plan(), TOKENIZER, SamplingParams(), 512)
        return Offer(unloaded, load, Need(size), **settings)

    def engine(self, name: str) -> FakeEngine:
        return next(each for each in reversed(self.engines) if each.name == name)

    @property
    def loaded(self) -> list[str]:
        return [offer.name[-1] for offer, engine in self.models.states() if not isinstance(engine, Unloaded)]


class Client:
    """Requests to a `Fleet`, whose first model is loaded."""

    def __init__(self, fleet: Fleet, http: httpx.AsyncClient) -> None:
        self.fleet, self.http = fleet, http

    async def ask(self, model: str | None, **more: Any) -> httpx.Response:
        named = {} if model is None else {"model": model}
        return await self.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 3, **named, **more})

    async def message(self, model: str) -> tuple[int, str]:
        answer = await self.ask(model)
        return answer.status_code, answer.json()["error"]["message"]

    async def ollama(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(f"/api/{path}", json=body)


def with_fleet(work: Callable[[Client], Awaitable[None]], *, keys: Path | None = None, **options: Any) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            fleet = Fleet(**options)
            stack.push_async_callback(fleet.models.aclose)
            await fleet.models.start()
            app = create_app(fleet.models, api_key=None, keys=keys)
            transport = httpx.ASGITransport(app)
            http = await stack.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=10)
            )
            await work(Client(fleet, http))

    asyncio.run(run())


async def turns(count: int = 20) -> None:
    """Let others go on."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_requests_go_to_the_model_that_they_name() -> None:
    async def work(client: Client) -> None:
        for asked, answers in ((None, "acme/a"), ("acme/b", "acme/b"), ("b", "acme/b"), ("claude-opus-4", "acme/b")):
            answer = await client.ask(asked)
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == answers
        status, message = await client.message("gpt-9")
        assert status == 404
        assert all(each in message for each in ("'acme/a'", "'acme/b'", "'acme/c'", "--alias"))
        assert client.fleet.loaded == ["a", "b"]

    with_fleet(work, aliases=Aliases.parse(["claude-*=b"]))


def test_aliases_and_names_are_checked() -> None:
    for given, wrong in ((["a"], "ALIAS=NAME"), (["x=a", "x=b"], "twice")):
        with pytest.raises(ConfigError, match=wrong):
            Aliases.parse(given)
    one = FakeEngine()
    with pytest.raises(ConfigError, match="is of 'other', which is not served"):
        create_app(one, api_key=None, aliases=Aliases.parse(["gpt-*=other"]))

    async def asked() -> list[int]:
        app = create_app(one, api_key=None, aliases=Aliases.parse(["gpt-*=fake-1b"]))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            body = {"prompt": "Hi", "max_tokens": 1}
            return [
                (await http.post("/v1/completions", json={**body, "model": name})).status_code
                for name in ("gpt-4", "gp")
            ]

    assert asyncio.run(asked()) == [200, 404]


def test_the_least_recently_used_model_makes_room() -> None:
    async def work(client: Client) -> None:
        fleet = client.fleet
        for at, name in enumerate(("b", "a"), 1):
            fleet.now = at
            assert (await client.ask(name)).status_code == 200
        fleet.now = 3
        assert (await client.ask("c")).status_code == 200  # 3 beside 2 of 5
        assert fleet.loaded == ["a", "c"]
        assert fleet.engine("acme/b").closed
        assert not fleet.engine("acme/a").closed
        assert [line.split(" (")[0] for line in fleet.told] == [
            "acme/a is loaded",
            "acme/b is loaded",
            "acme/b is unloaded: acme/c needs its memory",
            "acme/c is loaded",
        ]

    with_fleet(work)


def test_pinned_models_stay_and_the_refusal_says_so() -> None:
    async def work(client: Client) -> None:
        assert (await client.ask("b")).status_code == 200
        answer = await client.ask("c")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        error = answer.json()["error"]
        assert error["code"] == "model_unavailable"
        assert error["message"] == (
            "'acme/c' does not fit into memory now: it needs 3 GiB, and 1 GiB of the limit of 5 GiB "
            "(--memory-limit) is free; in memory are 'acme/a' (2 GiB, pinned), 'acme/b' (2 GiB, pinned)"
        )
        assert client.fleet.loaded == ["a", "b"]

    with_fleet(work, settings={"acme/a": {"pin": True}, "acme/b": {"pin": True}})


def test_what_the_machine_has_free_counts_too() -> None:
    async def work(client: Client) -> None:
        assert (await client.ask("c")).status_code == 200
        assert client.fleet.loaded == ["c"]
        client.fleet.free = 4 * GIB + GIB // 2
        assert (await client.ask("a")).status_code == 200
        client.fleet.free = 2 * GIB + GIB // 2  # others have taken the rest
        status, message = await client.message("c")
        assert status == 503
        assert "needs 3 GiB, and 512 MiB is free; in memory is 'acme/a' (2 GiB)" in message
        assert client.fleet.loaded == ["a"]  # not unloaded in vain

    with_fleet(work, limit=None, free=4 * GIB)
    need, held = Need(4, 1), [Held("x", Need(3, 1), 1.0), Held("y", Need(3, 1), 0.0), Held("z", Need(5), 2.0, "pinned")]
    assert Memory(None, lambda: 3).room(need, held) == 1  # the caches of two may grow
    out = asyncio.run(Memory(None, lambda: 3).first_out("w", need, held))
    assert out is not None
    assert out.name == "y"
    # So that nothing is unloaded in vain.
    assert asyncio.run(Memory(None, lambda: 3).first_out("w", Need(8), held)) is None
    assert Memory(11, lambda: 99).room(need, held) == 0


def test_weights_that_stay_on_disk_need_no_memory() -> None:
    spec = demo_spec()
    model = PreparedModel(Path("m"), spec, make_plan(spec, tensor=2), TOKENIZER, SamplingParams(), frozenset(), "")
    whole = Need.of(EngineOptions("m"), model, 64)
    held = [use.weights for use in rank_memory(spec, model.plan, context=64)]
    streamed = Need.of(EngineOptions("m", stream_weights=100_000), model, 64)
    assert whole.total - streamed.total == sum(held) - 2 * 100_000
    assert Need.of(EngineOptions("m", stream_weights=AS_NEEDED), model, 64) == whole


def test_a_model_in_use_is_not_unloaded() -> None:
    async def work(client: Client) -> None:
        fleet = client.fleet
        hold = fleet.engine("acme/a").hold = asyncio.Event()
        assert (await client.ask("b")).status_code == 200
        asked = asyncio.create_task(client.ask("a"))
        await turns()
        second = asyncio.create_task(client.ask("c"))  # b goes, a stays
        assert (await second).status_code == 200
        assert fleet.loaded == ["a", "c"]
        assert (await client.ask("b")).status_code == 200  # c goes
        assert fleet.loaded == ["a", "b"]
        hold.set()
        assert (await asked).status_code == 200

    with_fleet(work)


def test_loading_waits_for_requests_of_the_model_that_is_in_the_way() -> None:
    async def work(client: Client) -> None:
        fleet = client.fleet
        hold = fleet.engine("acme/a").hold = asyncio.Event()
        asked = asyncio.create_task(client.ask("a"))
        await turns()
        waiting = asyncio.create_task(client.ask("c"))
        await turns()
        assert fleet.loaded == ["a"]
        hold.set()
        assert [(await asked).status_code, (await waiting).status_code] == [200, 200]
        assert fleet.loaded == ["c"]

    with_fleet(work, limit=3 * GIB, busy_seconds=10.0)

    async def impatient(client: Client) -> None:
        hold = client.fleet.engine("acme/a").hold = asyncio.Event()
        asked = asyncio.create_task(client.ask("a"))
        await turns()
        status, message = await client.message("c")
        assert status == 503
        assert "'acme/a' (2 GiB, in use by 1 request)" in message
        hold.set()
        assert (await asked).status_code == 200

    with_fleet(impatient, limit=3 * GIB)


def test_requests_share_a_load_which_outlives_them() -> None:
    async def work(client: Client) -> None:
        fleet = client.fleet
        fleet.gate.clear()
        asked = [asyncio.create_task(client.ask("b")) for _ in range(3)]
        await turns()
        assert (await client.http.get("/health")).json()["models"]["acme/b"]["status"] == "loading"
        asked[0].cancel()
        await turns()
        fleet.gate.set()
        assert [(await each).status_code for each in asked[1:]] == [200, 200]
        assert [each.name for each in fleet.engines] == ["acme/a", "acme/b"]

    with_fleet(work)


def test_a_request_does_not_wait_for_ever() -> None:
    async def work(client: Client) -> None:
        client.fleet.gate.clear()
        status, message = await client.message("b")
        assert status == 503
        assert "still loading" in message
        client.fleet.gate.set()
        await turns()
        assert (await client.ask("b")).status_code == 200
        assert len(client.fleet.engines) == 2

    with_fleet(work, wait_seconds=0.02)


def test_a_load_that_fails_is_told_and_tried_again_after_a_pause() -> None:
    async def work(client: Client) -> None:
        fleet = client.fleet
        fleet.broken["acme/b"] = EngineError("rank 0 ran out of memory")
        for _ in range(2):
            answer = await client.ask("b")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
            assert "rank 0 ran out of memory" in answer.json()["error"]["message"]
        health = (await client.http.get("/health")).json()
        assert (health["status"], health["models"]["acme/b"]["status"]) == ("ok", "failed")
        assert (await client.ask("a")).status_code == 200
        del fleet.broken["acme/b"]
        assert (await client.ask("b")).status_code == 503
        fleet.now += 10
        assert (await client.ask("b")).status_code == 200

    with_fleet(work)


def test_a_model_that_has_failed_for_good_is_loaded_again() -> None:
    async def work(client: Client) -> None:
        fleet = client.fleet
        fleet.engine("acme/a").error = "rank 1 was lost"
        status, message = await client.message("a")
        assert status == 503
        assert "rank 1 was lost" in message
        await turns()
        assert fleet.engines[0].closed
        fleet.now += 10
        assert (await client.ask("a")).status_code == 200
        assert len(fleet.engines) == 2

    with_fleet(work)


def test_a_model_that_waits_for_memory_gets_that_of_models_used_before() -> None:
    async def work(client: Client) -> None:
        fleet = client.fleet
        for at, name in enumerate(("b", "a"), 11):
            fleet.now = at
            assert (await client.ask(name)).status_code == 200
        fleet.engine("acme/b").away = ModelUnavailable("hosta cannot hold it")
        fleet.room.limit = 3 * GIB  # as if a host were gone
        await fleet.models.make_way()
        assert fleet.loaded == ["a", "b"]  # a was used later
        fleet.now += 1
        assert (await client.message("b")) == (503, "hosta cannot hold it")
        await fleet.models.make_way()
        assert fleet.loaded == ["a", "b"]  # not looked at so soon again
        fleet.now += 10
        await fleet.models.make_way()
        assert fleet.loaded == ["b"]
        assert fleet.told[-1] == "acme/a is unloaded: acme/b needs its memory to come back"
        fleet.engine("acme/b").away = None
        assert (await client.ask("b")).status_code == 200

    with_fleet(work)


def test_models_leave_when_their_time_is_over() -> None:
    async def work(client: Client) -> None:
        fleet = client.fleet
        assert (await client.ask("b")).status_code == 200
        fleet.now = 59
        await fleet.models.expire()
        assert fleet.loaded == ["a", "b"]
        fleet.now = 60
        await client.http.get("/api/ps")  # no use
        await fleet.models.expire()
        assert fleet.loaded == ["a"]
        assert (await client.http.get("/health")).status_code == 200

    with_fleet(work, settings={"acme/b": {"ttl": 60.0}})


def test_all_are_listed_loaded_or_not() -> None:
    async def work(client: Client) -> None:
        cards = (await client.http.get("/v1/models")).json()["data"]
        assert [(each["id"], each["state"]) for each in cards] == [
            ("acme/a", "ready"),
            ("acme/b", "unloaded"),
            ("acme/c", "unloaded"),
        ]
        one = (await client.http.get("/v1/models/c")).json()
        assert (one["id"], one["context_length"]) == ("acme/c", 512)
        anthropic = await client.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
        assert [each["id"] for each in anthropic.json()["data"]] == ["acme/a", "acme/b", "acme/c"]
        assert len((await client.http.get("/api/tags")).json()["models"]) == 3
        assert [each["name"] for each in (await client.http.get("/api/ps")).json()["models"]] == ["acme/a:latest"]
        assert "completion" in (await client.ollama("show", model="acme/b")).json()["capabilities"]
        assert (await client.http.post("/tokenize", json={"model": "b", "prompt": "Hi"})).json()["count"]
        health = (await client.http.get("/health")).json()
        assert health["models"]["acme/b"] == {"status": "unloaded", "memory": 2 * GIB}
        assert (health["status"], health["model"], client.fleet.loaded) == ("ok", "acme/a", ["a"])

    with_fleet(work)


def test_ollama_loads_keeps_and_unloads() -> None:
    async def work(client: Client) -> None:
        fleet = client.fleet
        assert (await client.ollama("generate", model="b", keep_alive=0)).json()["done_reason"] == "unload"
        assert fleet.loaded == ["a"]  # not loaded for that
        assert (await client.ollama("generate", model="b:latest", keep_alive="1m30s")).json()["done_reason"] == "load"
        assert fleet.loaded == ["a", "b"]
        fleet.now = 89
        await fleet.models.expire()
        assert fleet.loaded == ["a", "b"]
        fleet.now = 90
        await fleet.models.expire()
        assert fleet.loaded == ["a"]
        await client.ollama("generate", model="b", prompt="Hi", options={"num_predict": 1}, keep_alive=-1, stream=False)
        fleet.now = 1e9
        await fleet.models.expire()
        assert fleet.loaded == ["a", "b"]
        assert (await client.ollama("chat", model="b", messages=[], keep_alive="0s")).json()["done_reason"] == "unload"
        await turns()
        assert fleet.loaded == ["a"]

    with_fleet(work)


def test_a_key_sees_and_loads_its_models_only(tmp_path: Path) -> None:
    key = new_key()
    add_key(tmp_path / "keys.json", ApiKey("one", digest_of(key.encode()), key[:8], 0.0, models=("b", "claude-opus")))

    async def work(client: Client) -> None:
        client.http.headers["Authorization"] = f"Bearer {key}"
        cards = (await client.http.get("/v1/models")).json()["data"]
        assert [each["id"] for each in cards] == ["acme/b"]
        assert (await client.http.get("/v1/models/c")).status_code == 404
        for name, status in (
            ("a", 404),
            ("c", 404),
            ("claude-haiku", 404),
            ("b", 200),
            ("claude-opus", 200),
            (None, 200),
        ):
            answer = await client.ask(name)
            assert (name, answer.status_code) == (name, status)
            assert status == 404 or answer.json()["model"] == "acme/b"
            assert not any(other in answer.text for other in ("acme/a", "acme/c", "claude-*"))
        assert client.fleet.loaded == ["a", "b"]
        health = await client.http.get("/health")
        assert (list(health.json()["models"]), health.json()["model"]) == (["acme/b"], "acme/b")
        for stranger in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
            health = await client.http.get("/health", headers=stranger)
            assert (health.status_code, health.json()) == (200, {"status": "ok", "models": {}})
        missing = (await client.ask("claude-opus-5")).json()["error"]
        assert missing["message"].endswith("not for this key, which is for 'b', 'claude-opus'")

    with_fleet(work, keys=tmp_path / "keys.json", aliases=Aliases.parse(["claude-*=b"]))

    async def no_room(client: Client) -> None:
        client.http.headers["Authorization"] = f"Bearer {key}"
        status, message = await client.message("b")
        assert status == 503
        assert message.endswith("is free; in memory is another model")

    with_fleet(no_room, keys=tmp_path / "keys.json", limit=3 * GIB, settings={"acme/a": {"pin": True}})


def test_the_description_has_both_forms_of_health() -> None:
    async def work(client: Client) -> None:
        described = (await client.http.get("/openapi.json")).json()
        for status in ("200", "503"):
            content = described["paths"]["/health"]["get"]["responses"][status]["content"]["application/json"]
            forms = [each["$ref"].rpartition("/")[2] for each in content["schema"]["anyOf"]]
            assert forms == ["openai.HealthBody", "openai.ManyHealthBody"]
            assert set(forms) <= described["components"]["schemas"].keys()

    with_fleet(work)


def test_closing_ends_a_load_and_refuses_those_who_wait() -> None:
    async def work(client: Client) -> None:
        client.fleet.gate.clear()
        asked = asyncio.create_task(client.ask("b"))
        await turns()
        await client.fleet.models.aclose()
        assert (await asked).status_code == 503
        assert all(each.closed for each in client.fleet.engines)

    with_fleet(work)


def test_models_that_were_loaded_are_closed_where_a_later_one_fails_at_the_start() -> None:
    async def run() -> None:
        fleet = Fleet(settings={"acme/b": {"preload": True}})
        fleet.broken["acme/b"] = ModelUnavailable("no")
        with pytest.raises(ModelUnavailable):
            await fleet.models.start()
        assert fleet.engine("acme/a").closed
        assert fleet.loaded == []

    asyncio.run(run())

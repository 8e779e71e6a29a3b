"""Hosts of a cluster that compute prompts: which, and what the two groups of ranks are then told."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_cluster_planner import GB, FakeCluster, form

from agents import desired, make_home
from ferrule.agent.models import apart as apart_models
from ferrule.agent.models import server as model_server
from ferrule.agent.models.apart import alone_with_prompts, wanted_apart
from ferrule.agent.models.server import ModelServer
from ferrule.agent.placement import apart as placement
from ferrule.agent.placement import planner as planner_module
from ferrule.agent.placement.apart import division, given_division, planned_division
from ferrule.agent.placement.planner import ClusterPlanner
from ferrule.engine import EngineOptions
from ferrule.engine.types import HandOverUse, Health
from ferrule.errors import ConfigError
from ferrule.model import read_model
from ferrule.model.layer import WHOLE
from ferrule.plan import ClusterSpec, DeviceSpec, PairSpec, Plan, RailSpec, Stage, search
from ferrule.plan.saved import ModelFacts

DEMO = read_model("demo")
LLAMA = read_model("llama-3.2-3b")
QUICK = DeviceSpec("quick", 24 << 30, 60e9, {"fp32": 20e12})
LARGE = DeviceSpec("large", 120 << 30, 200e9, {"fp32": 2e12})
CABLE = PairSpec(("quick", "large"), (RailSpec("ethernet-10g", 200e-6, 1.2e9),))
NAMES = ("away", "large", "quick")


def test_the_planner_gives_prompts_to_hosts_that_are_quick_at_them() -> None:
    found = division(LLAMA, ClusterSpec((QUICK, LARGE), (CABLE,)), 8192, NAMES)
    assert found is not None
    assert (found.prompts, found.answers) == (("quick",), ("away", "large"))
    assert found.reason.startswith("Prompts on quick, tokens on large")
    alike = ClusterSpec((LARGE, replace(LARGE, name="quick")), (CABLE,))
    assert division(LLAMA, alike, 8192, NAMES) is None
    together = (replace(QUICK, host="box"), replace(LARGE, host="box"))
    assert division(LLAMA, ClusterSpec(together, (CABLE,)), 8192, NAMES) is None, "one host would be lost to both"


def test_the_user_gives_prompts_to_some_hosts_and_answers_come_from_the_rest(monkeypatch) -> None:
    cluster = FakeCluster(monkeypatch, (64 * GB,) * 3)
    monkeypatch.setattr(placement, "ask_here", cluster.ask_here)
    found = asyncio.run(given_division(None, (), ("hostb",)))
    assert (found.answers, found.prompts) == (("hosta", "hostc"), ("hostb",))
    assert asyncio.run(given_division(None, ("hostb", "hostc"), ("hostb",))).answers == ("hostc",)
    with pytest.raises(ConfigError, match="no host is left for answers beside hosta, hostb, hostc"):
        asyncio.run(given_division(None, (), ("hosta", "hostb", "hostc")))
    with pytest.raises(ConfigError, match="the cluster has no hostx"):
        asyncio.run(given_division(None, (), ("hostx",)))


def test_hosts_are_asked_what_they_have_before_they_are_divided(monkeypatch) -> None:
    cluster = FakeCluster(monkeypatch, (64 * GB,) * 3)
    monkeypatch.setattr(placement, "ask_here", cluster.ask_here)
    options = EngineOptions("x", prefix_cache=True)

    def divided(wanted=()):
        return asyncio.run(planned_division(None, options, wanted, LLAMA, 8192))

    assert divided() is None, "hosts are alike"
    assert cluster.described == ["hosta", "hostb", "hostc"]
    asked = []
    monkeypatch.setattr(placement, "division", lambda *given: asked.append(given))
    cluster.answering = cluster.answering[:2]
    divided()
    ((model, described, context, names),) = asked
    assert (model, context, names) == (LLAMA, 8192, ["hosta", "hostb", "hostc"])
    assert [device.name for device in described.devices] == ["hosta", "hostb"]
    assert divided(("hostb",)) is None, "one host is not divided"
    with pytest.raises(ConfigError, match="the cluster has no hostx"):
        divided(("hostx",))


def test_each_group_is_planned_for_what_it_does(monkeypatch) -> None:
    FakeCluster(monkeypatch, (64 * GB,) * 3)
    asked = []

    def searched(question):
        asked.append(question.objective)
        found = search(question)
        (first, *_) = found.candidates
        pages = Stage(("hosta", "hostb"), 0, LLAMA.layers, (WHOLE,) * 2, context=True)
        spread = replace(first, plan=Plan((pages,)))
        return replace(found, candidates=(spread, *found.candidates))

    monkeypatch.setattr(planner_module, "search", searched)
    for role, objective in (("", "latency"), ("answers", "latency"), ("prompts", "ttft")):
        planner = ClusterPlanner(None, EngineOptions("x", hands_over=role), split=False)
        deployment = form(planner, LLAMA)
        assert asked.pop() == objective
        assert (deployment.options.plan.context > 1) == (role == ""), "blocks go to ranks that keep them whole"


def plan_text() -> str:
    stage = {"first_layer": 0, "last_layer": DEMO.layers}
    one = {"stages": [{"devices": ["large"], **stage}], "prompts": {"stages": [{"devices": ["quick"], **stage}]}}
    return json.dumps({"version": 1, "model": vars(ModelFacts.of(DEMO)), "runtime": "ferrule", "plans": [one]})


@pytest.mark.parametrize("way", ["given", "planned", "saved", "not worth it"])
def test_both_groups_are_placed_on_hosts_of_their_own(tmp_path, monkeypatch, way) -> None:
    home = make_home(tmp_path, "here")
    health = Health("ready", hand_over=HandOverUse("ready", joined=True))
    engine = SimpleNamespace(health=lambda: health, ranks=(), tokenizer=SimpleNamespace(warning=None))
    begun = []

    async def here(_home, *rest):
        hosts = SimpleNamespace(answers=("large",), prompts=("quick",), reason="prompts on quick")
        return None if way == "not worth it" else hosts

    async def start(options, model, answers, prompts, heard, *, device):
        begun.append((answers.__self__, prompts.__self__))
        assert device == ("cuda" if way == "given" else None)
        return engine

    async def plain(options, *, on_progress, planner):
        return engine

    async def prepared(options, on_progress):
        return SimpleNamespace(spec=DEMO, longest=256)

    async def measure(engine):
        return 0.1

    monkeypatch.setattr(apart_models, "given_division", here)
    monkeypatch.setattr(apart_models, "planned_division", here)
    for name, value in (("prepared", prepared), ("start_apart_on_hosts", start), ("start", plain)):
        monkeypatch.setattr(model_server, name, value)
    monkeypatch.setattr(model_server, "measure_speed", measure)
    given = {
        "given": {"prefill": 2, "prefill_hosts": ("quick",), "pipeline": 2, "prefill_device": "cuda"},
        "planned": {"prefill": 0},
        "not worth it": {"prefill": 0},
        "saved": {"plan": plan_text()},
    }[way]
    server = ModelServer(home, "demo", desired(home.settings.host, **given))
    asyncio.run(server.load())
    if way == "not worth it":
        assert (begun, len(server._planners)) == ([], 1)
        return
    ((answers, prompts),) = begun
    assert server._planners == [answers, prompts]
    assert (answers._hosts._wanted, prompts._hosts._wanted) == (("large",), ("quick",))
    assert (answers._hosts._names_beside, prompts._hosts._names_beside) == ({"quick"}, {"large"})
    assert (answers._options.hands_over, prompts._options.hands_over) == ("answers", "prompts")
    assert (answers._split, prompts._split) == ((True, True) if way == "given" else (False, False))
    assert (prompts._options.tensor, prompts._options.pipeline) == ((2, 1) if way == "given" else (1, 1))
    assert (answers._options.device, prompts._options.device) == ("cpu", "cuda" if way == "given" else "cpu")
    assert server.state().state == "ready"


def test_what_a_record_wants_and_what_is_told_of_it() -> None:
    host = "0" * 32
    assert wanted_apart(desired(host)) is None
    assert wanted_apart(desired(host, prefill=2)).prefill == 2
    assert wanted_apart(desired(host, plan=plan_text())).saved.hosts == ("large",)
    use = HandOverUse("waiting", error="none of the hosts quick answers")
    told = "prompts are computed where answers are until other ranks can do so"
    assert alone_with_prompts(Health("ready", hand_over=use)) == f"{told} (none of the hosts quick answers)"
    assert alone_with_prompts(Health("ready", hand_over=HandOverUse("ready"))) == f"{told} (they join these)"
    assert alone_with_prompts(Health("ready", hand_over=HandOverUse("recovering"))) == f"{told} (they are recovering)"
    assert alone_with_prompts(Health("ready", hand_over=replace(use, joined=True))) == ""
    assert alone_with_prompts(Health("ready")) == ""

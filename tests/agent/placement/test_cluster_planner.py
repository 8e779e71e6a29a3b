import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ferrule.agent.placement import devices as host_devices
from ferrule.agent.placement import hosts as rank_hosts
from ferrule.agent.placement import planner as cluster_planner
from ferrule.agent.placement.cores import HostCores
from ferrule.agent.placement.planner import ClusterPlanner, _rather_here
from ferrule.agent.placement.shared import Part, SharedMemory
from ferrule.cluster.messages import GetReachable
from ferrule.cluster.records import Member
from ferrule.cluster.reports import DeviceReport, HostStatus
from ferrule.engine.host.placement import Loss
from ferrule.engine.messages import DeviceLost
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.errors import ClusterError, ConfigError, EngineError, ModelUnavailable, PlanError
from ferrule.fabric.join.addresses import Interface
from ferrule.fabric.join.hosts import RankHost
from ferrule.model import read_model
from ferrule.plan import ClusterSpec, DeviceSpec, Plan, Question, SavedPlan, Stage, Workload, best_plan, make_plan
from ferrule.plan.cluster import HostReport
from ferrule.plan.saved import ModelFacts, SavedCluster, SavedDevice

MEMBERS = [
    Member(letter * 32, f"host{letter}", 8421, (f"10.0.0.{n}",), "0.1.0", "3.11") for n, letter in enumerate("abc")
]
GB = 10**9


def report(number, memory, kernel="boot"):
    device = DeviceSpec(
        name="whatever",
        memory=memory,
        memory_bandwidth=50 * GB,
        flops={"fp32": 1e12, "bf16": 1e12},
        launch_seconds=5e-6,
    )
    face = Interface("eth0", f"10.0.0.{number}", 24, 1500, 10_000)
    host = RankHost("whatever", f"id{number}", 1, (0, 1, 2, 3), "auto", interfaces=(face,), kernel=kernel)
    return HostReport(device, host)


class FakeCluster:
    """A cluster of agents with given answers; hosts a, b, c with 4 processors each."""

    def __init__(self, monkeypatch, memory=(16 * GB, 16 * GB, 16 * GB)):
        self.answering = [member.host for member in MEMBERS]
        self.memory = dict(zip([member.host for member in MEMBERS], memory, strict=True))
        self.described = []
        self.asked_now = []
        self.looks = 0
        """Questions to the own agent."""
        self.up_seconds = 31.0
        self.install = {}
        """By host id, the command that installs the engine where it lacks."""
        self.kernels = {member.host: f"boot of {member.name}" for member in MEMBERS}
        monkeypatch.setattr(rank_hosts, "ask_here", self.ask_here)
        monkeypatch.setattr(host_devices, "ask_member", self.ask_member)
        monkeypatch.setattr(rank_hosts, "ask_all", self.ask_all)
        monkeypatch.setattr(host_devices, "parse_report", lambda text, origin: text_of[text])
        monkeypatch.setattr(host_devices, "read_calibrations", dict)

    async def ask_here(self, home, question):
        self.looks += 1
        if isinstance(question, GetReachable):
            return self.answering
        rows = [
            HostStatus(
                **vars(member) | {"install_engine": self.install.get(member.host, "")},
                state="here" if member is MEMBERS[0] else "up" if member.host in self.answering else "lost",
                up_seconds=self.up_seconds if member.host in self.answering else None,
            )
            for member in MEMBERS
        ]
        return SimpleNamespace(host=MEMBERS[0].host, hosts=rows)

    async def ask_member(self, home, member, question, *, timeout):
        self.described.append(member.name)
        self.asked_now.append(question.now)
        text_of[member.name] = report("abc".index(member.host[0]), self.memory[member.host], self.kernels[member.host])
        return member.name

    async def ask_all(self, home, members, question, timeout):
        return {member.host: HostCores(self.kernels[member.host], (0, 1, 2, 3)) for member in members}


text_of = {}


def form(planner, spec, loss=None, device="cpu"):
    plan = make_plan(spec)
    options = RankOptions("/models/x", "auto", plan, 1, 2048, 8, 512, (), device=device)
    planner._spec = spec
    return asyncio.run(planner.place(options, loss))


@pytest.fixture
def spec():
    return read_model("llama-3.1-8b")


def test_those_that_are_left_stay_where_they_are_and_others_come_beside_them(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch)
    a, b, c = (member.host for member in MEMBERS)
    engine = EngineOptions("x", tensor=2, pipeline=2)
    planner = ClusterPlanner(None, engine, split=True)
    options = RankOptions("/models/x", "auto", make_plan(spec, tensor=2, pipeline=2), 1, 2048, 8, 512, ())
    planner._spec = spec

    async def scene():
        now = await planner.place(options, None)
        assert [host for host, _ in now.starter.places] == [a, a, b, c]
        loss = Loss(EngineError("gone"), (2,), ("hostb",), crashed=True)
        assert await planner.keeping(options, now, loss) is now
        cluster.answering = [a, b]
        found = await planner.keeping(options, now, loss)
        assert [host for host, _ in found.starter.places] == [a, a, b, b]
        looks = cluster.looks
        assert await planner.place(options, loss) == found
        assert cluster.looks == looks, "it knows already who answers"
        cluster.answering = [b, c]
        assert await planner.keeping(options, now, loss) is None, "the others look for rank 0 where it was"
        lost = replace(loss, devices=(("hostb", DeviceLost("cuda:0", starting=True, others=())),))
        cluster.answering = [a, b, c]
        assert await planner.keeping(options, now, lost) is None

    asyncio.run(scene())


def test_an_agent_that_does_not_answer_is_waited_for(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch)

    async def busy(home, question):
        raise ClusterError("this host's agent does not answer (in time)")

    monkeypatch.setattr(rank_hosts, "ask_here", busy)
    with pytest.raises(ModelUnavailable, match="does not answer"):
        form(ClusterPlanner(None, EngineOptions("x"), split=False), spec)
    assert cluster.described == []


def test_ranks_are_spread_over_the_hosts_as_the_user_said(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch)
    planner = ClusterPlanner(None, EngineOptions("x", tensor=2), split=True)
    deployment = form(planner, spec)
    assert planner.placed.hosts == ("hosta", "hostb")
    assert deployment.options.plan.tensor == 2
    assert deployment.starter.threads == (4, 4)
    assert form(planner, spec).starter == deployment.starter
    cluster.answering = [MEMBERS[0].host]
    deployment = form(planner, spec, Loss(EngineError("gone"), (1,), ("hostb",), crashed=False))
    assert planner.placed.hosts == ("hosta", "hosta")
    assert deployment.starter.threads == (2, 2)
    assert cluster.described == []  # nothing had to be measured


def test_a_device_that_stays_lost_is_replaced_on_its_host_and_needs_room_there(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch)
    processor = [DeviceReport("gpu", "card", 48 * GB, 40 * GB), DeviceReport("cpu", "processor", 64 * GB, 20 * GB)]

    async def ask_all(home, members, question, timeout):
        return {
            member.host: SimpleNamespace(kernel=cluster.kernels[member.host], cpus=(0, 1), devices=processor)
            for member in members
        }

    monkeypatch.setattr(rank_hosts, "ask_all", ask_all)
    options = EngineOptions("x", tensor=2, device="cuda")
    planner = ClusterPlanner(None, options, split=True)
    assert form(planner, spec, device="cuda").options.device == "cuda"
    gone = DeviceLost("cuda:0", True, ("cuda:1", "cpu"))
    deployment = form(planner, spec, Loss(EngineError("gone"), (1,), ("hostb",), True, (("hostb", gone),)), "cuda")
    assert (planner.placed.hosts, deployment.options.device) == (("hosta", "hostb"), "cuda,cuda:1")
    assert deployment.note == "cuda:0 of hostb stays lost, so the model runs with rank 0 on cuda, rank 1 on cuda:1"
    gone = DeviceLost("cuda:1", True, ("cpu",))
    loss = Loss(EngineError("gone"), (1,), ("hostb",), True, (("hostb", gone),))
    assert form(planner, spec, loss, "cuda").options.device == "cuda,cpu"
    processor[1] = DeviceReport("cpu", "processor", 64 * GB, 5 * GB)
    with pytest.raises(PlanError, match=r"cuda:0 and cuda:1 of hostb stays lost, and .* cpu of hostb needs 7\.5 GiB"):
        form(planner, spec, loss, "cuda")


def test_hosts_of_one_machine_divide_its_processors_and_its_memory(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch, (24 * GB, 24 * GB, 24 * GB))
    cluster.kernels[MEMBERS[1].host] = cluster.kernels[MEMBERS[0].host]
    assert form(ClusterPlanner(None, EngineOptions("x", pipeline=3), split=True), spec).starter.threads == (2, 2, 4)
    monkeypatch.setattr(cluster_planner, "_rather_here", lambda question, best, here: best)
    planner = ClusterPlanner(None, EngineOptions("x"), split=False)
    form(planner, spec)  # 16 GB of weights: of 24 GB that two hosts share each has 12
    rooms = {use.device: use.room / GB for use in planner.placed.prediction.memory}
    assert rooms == pytest.approx({"hosta": 12.0, "hostb": 12.0, "hostc": 24.0})
    cluster.answering.remove(MEMBERS[2].host)
    deployment = form(planner, spec, Loss(EngineError("gone"), (0,), ("hostc",), crashed=False))
    assert set(planner.placed.hosts) == {"hosta", "hostb"}
    assert deployment.starter.threads == (2, 2)
    assert any("hosta shares its machine" in note for note in planner.placed.notes)


def test_the_planner_chooses_hosts_and_again_when_one_is_lost(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch, (12 * GB, 12 * GB, 12 * GB))
    planner = ClusterPlanner(None, EngineOptions("x"), split=False)
    deployment = form(planner, spec)  # 16 GB of weights: no host holds them alone
    used = set(planner.placed.hosts)
    assert len(used) >= 2
    assert deployment.options.plan.world_size == len(planner.placed.hosts)
    assert planner.placed.prediction.tokens_per_s > 0
    described = list(cluster.described)
    cluster.answering = [MEMBERS[0].host, MEMBERS[2].host]
    form(planner, spec, Loss(EngineError("gone"), (1,), ("hostb",), crashed=False))
    assert set(planner.placed.hosts) == {"hosta", "hostc"}
    assert cluster.described == described  # what is known will do when time counts
    cluster.answering = [MEMBERS[0].host]
    with pytest.raises(ModelUnavailable, match=r"hosta cannot hold it: .*GiB.* too little"):
        form(planner, spec, Loss(EngineError("gone"), (1,), ("hostc",), crashed=False))


def better(planner, spec, now):
    return asyncio.run(planner.better(RankOptions("/models/x", "auto", make_plan(spec), 1, 2048, 8, 512, ()), now))


def test_a_model_moves_back_to_hosts_that_have_been_up_for_a_while(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch)
    planner = ClusterPlanner(None, EngineOptions("x", tensor=2), split=True)
    whole = form(planner, spec)
    assert better(planner, spec, whole) is None
    everybody, cluster.answering = cluster.answering, [MEMBERS[0].host]
    alone = form(planner, spec, Loss(EngineError("gone"), (1,), ("hostb",), crashed=False))
    assert better(planner, spec, alone) is None
    cluster.answering, cluster.up_seconds = everybody, 29.0
    assert better(planner, spec, alone) is None
    cluster.up_seconds = 30.0
    assert better(planner, spec, alone) == whole
    assert planner.placed.hosts == ("hosta", "hosta")  # so far
    planner.chosen(whole)
    assert planner.placed.hosts == ("hosta", "hostb")
    monkeypatch.setenv("FERRULE_MOVE_BACK", "never")
    assert better(ClusterPlanner(None, EngineOptions("x", tensor=2), split=True), spec, alone) is None


def test_where_the_planner_chose_a_model_moves_only_to_where_it_is_faster(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch, (40 * GB, 40 * GB, 40 * GB))
    planner = ClusterPlanner(None, EngineOptions("x"), split=False)
    cluster.answering = [MEMBERS[0].host]
    alone = form(planner, spec)
    cluster.answering = [member.host for member in MEMBERS]
    found = better(planner, spec, alone)
    assert found is not None
    assert len(found.starter.members) > 1
    assert better(planner, spec, found) is None
    described = list(cluster.described)
    monkeypatch.setattr(cluster_planner, "MOVE_WORTH", 100.0)
    planner._weighed = None
    assert better(planner, spec, alone) is None
    assert cluster.described == described


def test_one_host_is_this_one_if_it_is_as_good(monkeypatch, spec):
    FakeCluster(monkeypatch, (40 * GB, 48 * GB, 64 * GB))
    planner = ClusterPlanner(None, EngineOptions("x"), split=False)
    form(planner, spec)
    assert len(planner.placed.hosts) > 1 or planner.placed.hosts == ("hosta",)
    question = Question(spec, ClusterSpec((report(0, 64 * GB).device,)), Workload(2048, 512))
    (device,) = question.cluster.devices
    slow, fast = replace(device, name="here", memory_bandwidth=GB), replace(device, name="there")
    question = question.on(ClusterSpec((slow, fast)))
    best = best_plan(question)
    assert best.plan.devices == ("there",)
    assert _rather_here(question, best, "here") == best
    same = question.on(ClusterSpec((replace(fast, name="here"), fast)))
    assert _rather_here(same, best_plan(same), "here").plan.devices == ("here",)


def test_hosts_that_were_not_named_or_cannot_tell_are_left_out(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch, (64 * GB, 64 * GB, 64 * GB))
    planner = ClusterPlanner(None, EngineOptions("x"), split=False, wanted=("hostb",))
    form(planner, spec)
    assert planner.placed.hosts == ("hostb",)
    with pytest.raises(ConfigError, match="the cluster has no hostz, only hosta, hostb, hostc"):
        form(ClusterPlanner(None, EngineOptions("x"), split=False, wanted=("hostz",)), spec)
    cluster.answering = [MEMBERS[0].host]
    with pytest.raises(ModelUnavailable, match="none of the hosts hostb answers"):
        form(planner, spec)

    async def mute(home, member, what, **arguments):
        raise ClusterError("no torch there")

    monkeypatch.setattr(host_devices, "ask_member", mute)
    with pytest.raises(ModelUnavailable, match="no host could be asked"):
        form(ClusterPlanner(None, EngineOptions("x"), split=False), spec)


@pytest.mark.parametrize("options", [EngineOptions("x"), EngineOptions("x", tensor=2)], ids=["chosen", "split"])
def test_no_rank_is_put_where_the_engine_is_not_installed(monkeypatch, spec, options):
    cluster = FakeCluster(monkeypatch, (16 * GB, 640 * GB, 16 * GB))
    split = options.tensor > 1
    cluster.install = {MEMBERS[1].host: "/opt/b/bin/python -m pip install 'ferrule[engine]'"}
    planner = ClusterPlanner(None, options, split=split)
    deployment = form(planner, spec)
    assert set(planner.placed.hosts) == {"hosta", "hostc"}
    assert "hostb" not in cluster.described
    assert better(planner, spec, deployment) is None
    words = r"no rank can run on hostb, where the engine is not installed; run there: /opt/b/bin/python -m pip install"
    with pytest.raises(ModelUnavailable, match=words):
        form(ClusterPlanner(None, options, split=split, wanted=("hosta", "hostb")), spec)
    cluster.install = dict.fromkeys(cluster.answering, "pip install x")
    with pytest.raises(ModelUnavailable, match=r"on hosta, .* pip install x; nor on hostb, .*; nor on hostc, .* x"):
        form(ClusterPlanner(None, options, split=split), spec)
    cluster.install = {}  # it was installed meanwhile
    form(planner, spec)
    assert "hostb" in planner.placed.hosts


def test_a_saved_plan_may_use_several_devices_of_a_host(monkeypatch, spec):
    FakeCluster(monkeypatch, (64 * GB,) * 3)
    stages = (Stage(("hosta-0",), 0, 10), Stage(("hosta-1",), 10, 20), Stage(("hostb",), 20, spec.layers))
    names = (SavedDevice("hosta-0", "hosta", "cuda:0"), SavedDevice("hosta-1", "hosta", "cuda:1"), SavedDevice("hostb"))
    saved = SavedPlan(1, ModelFacts.of(spec), "ferrule", (Plan(stages),), cluster=SavedCluster(names))
    planner = ClusterPlanner(None, EngineOptions("x"), split=False, saved=saved)
    form(planner, spec)
    assert planner.placed.hosts == ("hosta", "hosta", "hostb")


def test_a_saved_plan_says_on_which_hosts_which_layers_are(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch, (64 * GB, 64 * GB, 64 * GB))
    stages = (Stage(("hostc",), 0, 20), Stage(("hosta",), 20, spec.layers))
    saved = SavedPlan(1, ModelFacts.of(spec), "ferrule", (Plan(stages),), verdict="Because.")
    planner = ClusterPlanner(None, EngineOptions("x"), split=False, saved=saved)
    deployment = form(planner, spec)
    assert planner.placed.hosts == ("hostc", "hosta")
    assert [shard.last_layer for shard in deployment.options.plan.shards] == [20, spec.layers]
    assert deployment.options.plan.reason == "2 pipeline stages chosen by the planner. Because."
    cluster.answering = [MEMBERS[0].host]
    with pytest.raises(ModelUnavailable, match="the plan needs hostc, which cannot be reached now"):
        form(ClusterPlanner(None, EngineOptions("x"), split=False, saved=saved), spec)


def test_what_ranks_hold_is_for_the_longest_text_of_the_model(monkeypatch, spec):
    FakeCluster(monkeypatch, (64 * GB,) * 3)
    model, held = SimpleNamespace(spec=spec, longest=512), []
    for most in (None, 512):
        planner = ClusterPlanner(None, EngineOptions("x", max_context=most), split=False).about(model)
        form(planner, spec)
        held.append(planner.parts)
    assert held[0] == held[1]


def test_models_that_share_memory_fit_where_the_others_leave_room(monkeypatch, spec):
    cluster = FakeCluster(monkeypatch, (14 * GB, 14 * GB, 14 * GB))
    loaded = {"other": [Part("hosta", "cpu", 6 * GB, GB)]}

    def shortage(planner, *without, fresh=False):
        planner._spec = spec
        return asyncio.run(planner.shortage(without, fresh=fresh))

    options = EngineOptions("x", max_context=2048)
    shared = SharedMemory("own", lambda: loaded)
    planner = ClusterPlanner(None, options, split=False, memory=shared)
    assert shortage(planner, fresh=True) is None  # over several hosts
    assert cluster.asked_now == [True] * 3
    cluster.answering = [MEMBERS[0].host]
    assert "hosta cannot hold it: " in shortage(planner, fresh=True)
    assert len(cluster.described) == 4
    asked = cluster.looks
    assert shortage(planner, "other") is None
    assert len(cluster.described) == 4  # what was said will do
    assert cluster.looks == asked  # also who answers
    assert planner.parts == ()
    del loaded["other"]
    cluster.memory[MEMBERS[0].host] = 19 * GB
    deployment = form(planner, spec)
    assert [(part.host, part.device) for part in planner.parts] == [("hosta", "cpu")]
    assert planner.parts[0].total > spec.bytes
    assert deployment.options.plan.world_size == 1
    limited = ClusterPlanner(None, options, split=False, memory=SharedMemory("own", dict, 10 * GB))
    assert "hosta cannot hold it: " in shortage(limited, fresh=True)
    split = EngineOptions("x", tensor=2, max_context=2048)
    cluster.memory[MEMBERS[0].host] = 12 * GB
    loaded["other"] = [Part("hosta", "cpu", 8 * GB, 0)]
    spread = ClusterPlanner(None, split, split=True, memory=SharedMemory("own", lambda: loaded))
    assert shortage(spread, fresh=True).startswith("cpu of hosta needs 1")
    assert shortage(spread, "other") is None

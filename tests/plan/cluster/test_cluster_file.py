"""A cluster in TOML: what is written is what is planned for, and whatever is wrong is named with its cure."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.errors import ConfigError, PlanError
from ferrule.plan import ClusterSpec, DeviceSpec, PairSpec, RailSpec, read_cluster
from ferrule.plan.cluster import parse_cluster, write_cluster
from ferrule.plan.cluster.file import format_cluster

WHOLE = """
cores = 2
cores_together = 0.8
cores_in_turns = 0.7
cores_awake = 0.9

[[device]]
name = "strix"
count = 3
machine = "strix-halo"
memory = "120 GiB"
flops = { bf16 = 40e12 }
price = 2499

[[device]]
name = "box"
memory = "30 GB"
memory_bandwidth = "80.5 GB/s"
flops = { fp32 = "2e12", bf16 = 3e12 }
launch = "20us"
disk_read = "3 GB/s"
runtime = "400 MB"
watts_idle = 30
watts_busy = 120.5

[[link]]
between = ["strix-1", "strix-2"]
cable = "usb4-40g"
count = 2

[[link]]
between = ["strix-2", "strix-1"]
cable = "ethernet-1g"
latency = "30us"

[[link]]
mesh = ["strix-2", "strix-3", "box"]
name = "nic"
latency = "9us"
bandwidth = "10 Gb/s"
transport = "verbs"

[[route]]
from = "strix-1"
to = "box"
via = ["strix-2"]
"""


def test_a_whole_file() -> None:
    cluster = parse_cluster(WHOLE)
    assert [device.name for device in cluster.devices] == ["strix-1", "strix-2", "strix-3", "box"]
    strix, box = cluster.devices[1], cluster.by_name["box"]
    assert strix.memory == 120 << 30
    assert strix.memory_bandwidth == pytest.approx(256e9 * 0.85)
    assert strix.flops["bf16"] == 40e12
    assert strix.flops["fp32"] == pytest.approx(29.7e12)
    assert strix.price == 2499
    assert (strix.kind, box.kind) == ("strix-halo", "box")
    expected = DeviceSpec(
        "box",
        30 * 10**9,
        80.5e9,
        {"fp32": 2e12, "bf16": 3e12},
        kind="box",
        launch_seconds=box.launch_seconds,
        disk_read=3e9,
        runtime_bytes=400 * 10**6,
        watts_idle=30,
        watts_busy=120.5,
    )
    assert box == expected
    assert box.launch_seconds == pytest.approx(20e-6)
    assert (cluster.cores, cluster.cores_together, cluster.cores_in_turns, cluster.cores_awake) == (2, 0.8, 0.7, 0.9)
    first = cluster.pair("strix-1", "strix-2")
    assert first is not None
    assert [rail.name for rail in first.rails] == ["usb4-40g-1", "usb4-40g-2", "ethernet-1g"]
    assert first.alpha == pytest.approx(30e-6)
    nic = cluster.pair("strix-3", "box")
    assert nic is not None
    assert nic.rails == (RailSpec("nic", 9e-6, 10e9 / 8, "verbs"),)
    assert cluster.pair("strix-1", "box") is None
    assert cluster.notes == ()


def test_what_is_saved_can_be_read(tmp_path: Path) -> None:
    cluster = parse_cluster(WHOLE)
    write_cluster(cluster, tmp_path / "mine.toml")
    assert read_cluster(tmp_path / "mine.toml") == cluster


def test_more_memory_than_a_system_leaves_is_noted(tmp_path: Path) -> None:
    text = '[[device]]\nname = "mac"\nmachine = "mac-studio-m3-ultra"\nmemory = "{}"\n'
    assert parse_cluster(text.format("384 GiB")).notes == ()
    cluster = parse_cluster(text.format("490 GiB"))
    (note,) = cluster.notes
    assert note.startswith("mac: 490 GiB is more than its system leaves a model by itself, 384 GiB of 512 GiB; ")
    assert "iogpu.wired_limit_mb" in note
    write_cluster(cluster, tmp_path / "mac.toml")
    assert read_cluster(tmp_path / "mac.toml").notes == cluster.notes


def test_a_route_that_the_fabric_would_not_take_is_noted() -> None:
    text = """
    [[device]]
    name = "pc"
    count = 4
    machine = "pc"
    [[link]]
    between = ["pc-1", "pc-2"]
    cable = "ethernet-1g"
    [[link]]
    between = ["pc-2", "pc-4"]
    cable = "ethernet-1g"
    [[link]]
    between = ["pc-1", "pc-3"]
    cable = "ethernet-10g"
    [[link]]
    between = ["pc-3", "pc-4"]
    cable = "ethernet-10g"
    [[route]]
    from = "pc-4"
    to = "pc-1"
    via = ["pc-%s"]
    """
    assert parse_cluster(text % 3).notes == ()
    (note,) = parse_cluster(text % 2).notes
    assert "pc-4 → pc-3 → pc-1" in note


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('[[device]]\nname = "box"', '[[device]\nname = "box"', "mine.toml is not TOML"),
        ("[[link]]", "[[cable]]", "mine.toml: there is no field 'cable'; there are device, link, route"),
        ('name = "box"', 'name = "strix-1"', "two devices are called 'strix-1'"),
        ('name = "box"\n', "", r"\[\[device\]\] 2: name is missing; write name ="),
        ('machine = "strix-halo"', 'machine = "strix"', "strix, machine: there is no machine 'strix'; known"),
        ('memory = "30 GB"\n', "", r"\[\[device\]\] box: memory is missing; write memory = .*GiB"),
        ('memory = "30 GB"', 'memory = "-30 GB"', r"box, memory: more than 0 is needed, not '-30 GB'; write for"),
        ('memory = "30 GB"', "memory = -1", "box, memory: more than 0 is needed, not -1"),
        ('memory = "30 GB"', 'memory = "30 apples"', "box, memory: '30 apples' is no number"),
        ('memory = "30 GB"', "memory = true", "box, memory: True is no number"),
        ('"80.5 GB/s"', "0", "box, memory_bandwidth: more than 0 is needed, not 0; write for example"),
        ('"30 GB"', '"30 GB"\ndevice = "gpu"', "box, device: 'gpu' is none; write for example \"cuda:0\", or cpu"),
        ('"80.5 GB/s"', "nan", "box, memory_bandwidth: more than 0 is needed, not nan"),
        ('"2e12"', "inf", "box, flops: more than 0 is needed, not inf"),
        ('fp32 = "2e12"', "fp31 = 1e12", "box, flops: Invalid enum value 'fp31'; write .* of fp32, tf32"),
        ('{ fp32 = "2e12", bf16 = 3e12 }', "3e12", r"box, flops: Expected .*; write for example flops = \{ bf16"),
        ("watts_idle = 30", "watt_idle = 30", "box: there is no field 'watt_idle'; there are name"),
        ("count = 3", "count = 0", "strix, count: Expected `int` >= 1"),
        ("count = 3", "count = 2000", "strix, count: Expected `int` <= 1024"),
        ("cores = 2", "cores = 0", "mine.toml, cores: Expected `int` >= 1"),
        ("cores_together = 0.8", "cores_together = 1.5", "mine.toml: cluster: cores_together must be more than 0 and"),
        ('latency = "9us"\n', "", r"\[\[link\]\] 3: latency is missing; write latency = .*, or cable ="),
        ('latency = "9us"', 'latency = "-9us"', r"\[\[link\]\] 3, latency: at least 0 is needed, not '-9us'"),
        ('"10 Gb/s"', '"0 Gb/s"', r"\[\[link\]\] 3, bandwidth: more than 0 is needed, not '0 Gb/s'; write for example"),
        ('"10 Gb/s"', '"10 GB/s"', r"\[\[link\]\] 3, bandwidth: '10 GB/s' is no number; write for example"),
        ('transport = "verbs"', 'transport = "rdma"', r"\[\[link\]\] 3, transport: 'rdma' is none; there are shm"),
        ('"strix-3", "box"]', '"strix-3", "bax"]', r"\[\[link\]\] 3, mesh: there is no device 'bax', only strix-1"),
        ('"strix-3", "box"]', '"strix-3", "strix"]', "with a count its first one is 'strix-1'"),
        ('["strix-2", "strix-1"]', '["strix-2", "strix-2"]', r"\[\[link\]\] 2, between: 'strix-2' is there twice"),
        ('["strix-2", "strix-1"]', '["strix-2"]', r"\[\[link\]\] 2, between: Expected `array` of length >= 2; write"),
        ('mesh = ["strix-2"', 'between = ["box", "strix-3"]\nmesh = ["strix-2"', "needs one of between, mesh"),
        ('via = ["strix-2"]', 'via = ["strix-2", "strix-3", "strix-2"]', "'strix-2' is there twice; .* circle"),
        ('via = ["strix-2"]', 'via = ["strix-2", "strix-1"]', "twice: strix-1 → strix-2 → strix-1 → box"),
        ('via = ["strix-2"]', 'via = ["strix-3"]', "strix-1 and strix-3 share no link; strix-1 has links to strix-2"),
        ('via = ["strix-2"]', 'via = ["nobody"]', r"\[\[route\]\] 1, via: there is no device 'nobody'"),
        ('to = "box"', 'to = "strix-2"', "passes strix-2 twice|share a link"),
        ('to = "box"', "", r"\[\[route\]\] 1: to is missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_cure(before: str, after: str, told: str, tmp_path: Path) -> None:
    assert before in WHOLE
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE.replace(before, after))
    with pytest.raises((ConfigError, PlanError), match=told):
        read_cluster(path)


@pytest.mark.parametrize(
    "text", ["", "device = 3", "device = [3]", "[device]", "notes = 3", "x = " + "[" * 5000, "cores = " + "9" * 5000]
)
def test_other_nonsense(text: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml"):
        parse_cluster(text, "mine.toml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "none.toml", tmp_path / "bytes.toml", "\0"):
        with pytest.raises(ConfigError, match="cannot read the cluster file"):
            read_cluster(path)
    with pytest.raises(ConfigError, match="cannot write the cluster file"):
        write_cluster(parse_cluster(WHOLE), tmp_path / "none" / "mine.toml")


words = ["", "strix", "strix-1", "5us", "10 Gb/s", "1e999", "9" * 500, "-3 GiB", "usb4-40g", "tcp", "é\x7f"]
scalars = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.sampled_from(words),
    st.text(max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    return '"' + "".join(f"\\U{ord(char):08x}" for char in text) + '"'


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_other_error_for_any_value_of_any_field(data: st.DataObject) -> None:
    lines = WHOLE.splitlines()
    fields = [number for number, line in enumerate(lines) if " = " in line]
    number = data.draw(st.sampled_from(fields))
    key = data.draw(st.sampled_from([lines[number].split(" = ")[0], "price", "cable", "latency", "via"]))
    lines[number] = f"{key} = {_toml(data.draw(values))}"
    said = "cluster.toml"
    try:
        parse_cluster("\n".join(lines))
    except (ConfigError, PlanError) as error:
        said = str(error)
    assert "cluster.toml" in said


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_no_other_error_for_any_text(text: str) -> None:
    with pytest.raises((ConfigError, PlanError), match=r"cluster\.toml"):
        parse_cluster(text)


positive = st.floats(1e-9, 1e15)
maybe = st.none() | positive
devices = st.builds(
    DeviceSpec,
    name=st.just("a"),
    memory=st.integers(1, 2**50),
    memory_bandwidth=positive,
    flops=st.dictionaries(st.sampled_from(["bf16", "fp32", "int8"]), positive, min_size=1),
    kind=st.sampled_from(["", 'a "kind"', "µ\\"]),
    launch_seconds=st.floats(0, 1),
    eager_seconds=maybe,
    resume_seconds=st.floats(0, 1),
    disk_read=maybe,
    runtime_bytes=st.integers(0, 2**40),
    watts_idle=maybe,
    watts_busy=maybe,
    price=maybe,
    measured=st.booleans(),
    host=st.sampled_from(["", "box"]),
    device=st.sampled_from(["", "cpu", "cuda:1"]),
    copy_rate=maybe,
    copy_seconds=maybe,
    unified=st.booleans(),
)


@settings(max_examples=50, deadline=None)
@given(devices, st.lists(st.tuples(st.floats(0, 1), positive, st.sampled_from(["tcp", "verbs"])), max_size=3))
def test_any_cluster_comes_back(one: DeviceSpec, rails: list[tuple[float, float, str]]) -> None:
    other = DeviceSpec("b", 1, 1.0, {"fp16": 1})
    pairs = (PairSpec(("a", "b"), tuple(RailSpec(f"r{n}", *rail) for n, rail in enumerate(rails))),) if rails else ()
    cluster = ClusterSpec((one, other), pairs, None, ('said "so"',))
    found = parse_cluster(format_cluster(cluster))
    assert found == cluster
    assert found.notes == cluster.notes

"""`ferrule up` and `ferrule leave` where no agent runs."""

import io
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from agents import desired, make_home
from ferrule.cli.cluster import app as commands
from ferrule.cli.cluster import ray as cluster_ray
from ferrule.cli.cluster.models import offered
from ferrule.cli.cluster.tables import hosts_table, models_table
from ferrule.cli.serving.models_file import Wanted
from ferrule.cluster.desired import DesiredModel, OfferedModel
from ferrule.cluster.models import ModelRow
from ferrule.cluster.reports import ClusterStatus, HostStatus, OfferedState, ReplicaStatus
from ferrule.errors import ConfigError


@pytest.mark.parametrize("file", ["state.db", "host.json", "key"])
def test_a_host_with_a_damaged_file_can_leave_as_its_error_says(tmp_path, monkeypatch, capsys, file):
    monkeypatch.setenv("FERRULE_STATE", str(tmp_path))
    home = make_home(tmp_path, "clusters")
    (home.directory / file).write_text("not what it was, " * 100)
    commands.leave(cluster=None, host=None)
    assert not home.directory.exists()
    assert "no other host could be told" in capsys.readouterr().err


@pytest.mark.parametrize("listen", ["strix-1.local", "0.0.0.0", "::"])
def test_an_agent_does_not_listen_where_others_cannot_be_sent(tmp_path, monkeypatch, listen):
    monkeypatch.setenv("FERRULE_STATE", str(tmp_path))
    with pytest.raises(ConfigError, match="ferrule links"):
        commands.up(listen=listen)
    assert not list(tmp_path.iterdir())


def test_names_that_other_hosts_chose_are_no_markup():
    host = HostStatus("a" * 32, "[red]x[/red]", 8421, ("10.0.0.1",), "0.1.0", "3.11", state="up")
    status = ClusterStatus("here", "", "b" * 32, (host,), (), mdns=False, rivals=(), pid=1, started=0.0)
    console = Console(file=io.StringIO(), width=200)
    for part in hosts_table(status, {}):
        console.print(part)
    row = ModelRow(
        name="[b]m", wanted=desired("a" * 32), pid=1, state="ready", address="http://[::1]:8420", on="[link=x]"
    )
    for part in models_table([row]):
        console.print(part)
    for word in ("[red]x[/red]", "[b]m", "http://[::1]:8420", "[link=x]"):
        assert word in console.file.getvalue()


def test_names_of_a_model_and_its_hosts_are_whole_at_80_columns():
    row = ModelRow(
        name="Qwen3-30B-A3B", wanted=desired("a" * 32), pid=1, state="ready", address="http://127.0.0.1:8420",
        on="strix-1", strategy="tensor", hosts=("strix-1", "strix-2"), measured=121.7, predicted=123.0,
        note="chat is refused",
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    for part in models_table([row]):
        console.print(part)
    told = console.file.getvalue()
    for word in (
        "Qwen3-30B-A3B",
        "http://127.0.0.1:8420",
        "strix-2",
        "121.7",
        "(123.0",
        "recoveries",
        "B: chat is refused",
    ):
        assert word in told, told
    assert "…" not in told


def test_each_replica_of_a_model_has_a_line_with_its_hosts():
    replicas = (ReplicaStatus("ready", "", "tensor", ("a", "b")), ReplicaStatus("ready", "", "single", ("c",)))
    row = ModelRow(
        name="m", wanted=desired("a" * 32), pid=1, state="ready", address="http://[::1]:8420", on="a",
        strategy="tensor", hosts=("a", "b", "c"), replicas=replicas,
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=100)
    for part in models_table([row]):
        console.print(part)
    lines = console.file.getvalue().splitlines()
    assert any("m" in line and "tensor on a, b" in line for line in lines)
    assert any("single on c" in line for line in lines)


def test_several_models_of_an_address_have_a_row_each():
    first = OfferedState(name="chat", memory=1, pinned=True, state="ready", strategy="single", hosts=("strix-1",))
    second = OfferedState(name="coder", memory=1, state="failed", detail="no file")
    offered_ones = (OfferedModel(name="chat", model="x", kv_cache="int8"), OfferedModel(name="coder", model="y"))
    wanted = replace(desired("a" * 32), models=offered_ones, kv_cache="int8")
    row = ModelRow(
        name="models", wanted=wanted, pid=1, state="ready", address="http://127.0.0.1:8420", on="strix-1",
        models=(first, second, OfferedState(name="small", memory=1, state="unloaded")),
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=120)
    for part in models_table([row]):
        console.print(part)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["model", "models", "chat", "coder", "small"]
    assert lines[1].split()[1] == "ready", "each has a cache of its own"
    assert lines[2].split()[1:] == ["pinned", "int8", "cache", "ready", "single", "on", "strix-1", "-", "0"]
    assert lines[4].split()[1:] == ["unloaded", "-", "-", "-"]
    assert "coder: no file" in lines


@pytest.mark.parametrize(("kind", "told"), [("int4", ["m", "int4", "cache", "ready"]), ("auto", ["m", "ready"])])
def test_the_kind_of_a_models_cache_is_shown_where_it_was_asked_for(kind: str, told: list[str]) -> None:
    wanted = replace(desired("a" * 32), kv_cache=kind)
    row = ModelRow(name="m", wanted=wanted, pid=1, state="ready", address="http://[::1]:8420", on="a")
    console = Console(file=io.StringIO(), width=100)
    for part in models_table([row]):
        console.print(part)
    assert console.file.getvalue().splitlines()[1].split()[: len(told)] == told


def test_several_models_are_a_record_of_their_settings(tmp_path):
    path = tmp_path / "coder-30b"
    path.mkdir()
    wanted = Wanted(str(path), tensor=2, aliases=("gpt-*",), adapters=("poet=owner/poet",), pin=True)
    first, second = offered([wanted, Wanted("demo", "small", ttl=9.0)])
    record = desired("a" * 32, models=(first, second), hosts=("strix-1",))
    assert msgspec.json.decode(msgspec.json.encode(record), type=DesiredModel) == record
    one = record.only(first)
    assert (one.model, one.tensor, one.adapters, one.models) == (str(path), 2, ("poet=owner/poet",), ())
    assert (one.hosts, first.name, first.aliases, first.pin) == (("strix-1",), "coder-30b", ("gpt-*",), True)
    assert (second.model, second.name, second.ttl) == ("demo", "small", 9.0)
    with pytest.raises(ConfigError, match="two models are called 'coder-30b'"):
        offered([wanted, wanted])


@pytest.mark.parametrize(
    ("state", "expected"), [("stopped", "stopped for 3 s"), ("lost", "lost for 3 s"), ("up", "up")]
)
def test_a_host_that_was_stopped_does_not_look_lost(state, expected):
    host = HostStatus(
        "a" * 32, "strix-2", 8421, (), "0.1.0", "3.11", state=state, heard_seconds=3.2,
        problem=None if state == "up" else "10.0.0.2:8421: connection refused",
        install_engine="pip install 'ferrule[engine]'",
    )  # fmt: skip
    status = ClusterStatus("here", "", "b" * 32, (host,), (), mdns=False, rivals=(), pid=1, started=0.0)
    console = Console(file=io.StringIO(), width=200)
    for part in hosts_table(status, {}):
        console.print(part)
    shown = console.file.getvalue()
    assert expected in shown
    assert ("cannot be reached: 10.0.0.2:8421" in shown) == (state == "lost")
    assert ("it comes back by: ferrule up" in shown) == (state == "stopped")
    assert ("strix-2 runs no models; on it: pip install 'ferrule[engine]'" in shown) == (state == "up")


def test_what_up_is_told_of_ray_makes_sense(tmp_path, monkeypatch):
    monkeypatch.setenv("FERRULE_STATE", str(tmp_path))
    with pytest.raises(ConfigError, match="go with --ray"):
        commands.up(ray_port=9000)
    with pytest.raises(ConfigError, match="without --foreground"):
        commands.up(ray=True, foreground=True)
    monkeypatch.setattr(cluster_ray, "version_of", lambda package: None)
    with pytest.raises(ConfigError, match=r"pip install .*\[cluster\]"):
        commands.up(ray=True)
    assert not list(tmp_path.iterdir())

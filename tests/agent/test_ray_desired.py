"""Decisions of the cluster about Ray, and the start of its nodes."""

import json
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from ferrule.agent.ray.desired import NodePlan, node_env, skew, successor
from ferrule.agent.ray.token import temp_directory, token_file
from ferrule.cluster.desired import DesiredRay
from ferrule.cluster.home import ClusterHome, HostSettings
from ferrule.cluster.records import RAY, Member, RayRecord, record_from
from ferrule.errors import ClusterError
from ferrule.installation import pip_install
from ferrule.launch.ray_end import ranks_environment

HOSTS = [digit * 32 for digit in "abc"]
MEMBERS = {host: Member(host, f"strix-{host[0]}", 8421, ("10.0.0.1",), "0.1.0", "3.11.7", "2.60.0") for host in HOSTS}
DESIRED = DesiredRay(HOSTS[0], "10.0.0.1")


def test_versions_are_compared_before_a_node_starts():
    own, head = MEMBERS[HOSTS[1]], MEMBERS[HOSTS[0]]
    assert skew(own, head) is None
    both = skew(replace(own, ray="2.59.0", python="3.12.1"), head)
    assert both is not None
    assert both.startswith("Ray 2.59.0 here, 2.60.0 on strix-a")
    assert "Python 3.12.1 here, 3.11.7 on strix-a" in both
    assert pip_install("cluster") in (skew(replace(own, ray=""), head) or "")
    assert "strix-a" in (skew(own, replace(head, ray="")) or "")


@pytest.mark.parametrize(
    ("changes", "up", "expected"),
    [
        ({}, "bc", "b"),
        ({}, "c", "c"),
        ({}, "abc", "b"),  # the old head is not asked
        ({"b": {"ray": ""}}, "bc", "c"),
        ({"b": {"ray": "2.59.0"}}, "bc", "c"),  # so that the others need not change
        ({"b": {"ray": "2.59.0"}, "c": {"ray": ""}}, "bc", "b"),
        ({"b": {"ray": ""}}, "b", None),
    ],
)
def test_one_of_the_hosts_that_can_becomes_the_head(changes, up, expected):
    members = {host: replace(member, **changes.get(host[0], {})) for host, member in MEMBERS.items()}
    found = successor(DESIRED, members, [host for host in HOSTS if host[0] in up])
    assert found == (expected * 32 if expected else None)


def test_a_record_about_ray_is_checked():
    fields = msgspec.to_builtins(RayRecord(name=RAY, version=1, writer=HOSTS[0], value=DESIRED))
    assert record_from(fields).value == DESIRED
    for wrong in ({"port": 80}, {"port": 65300}, {"port": "8600"}, {"store": 1 << 20}, {"address": "--head"}):
        with pytest.raises(ClusterError, match=r"Ray|record cannot be used: Expected `int`"):
            record_from(fields | {"value": fields["value"] | wrong})


def test_every_port_and_address_is_chosen():
    words = NodePlan(DESIRED, "strix-a", "10.0.0.1", is_head=True).arguments("/t", client=False)
    told = dict(pairwise(words))
    ports = [int(value) for name, value in told.items() if name.endswith("port")]
    assert told["--node-ip-address"] == "10.0.0.1"
    assert told["--dashboard-host"] == "127.0.0.1"
    assert json.loads(told["--resources"]) == {"ferrule_host:strix-a": 1}
    assert len(ports) == len(set(ports)) == 10
    assert all(DESIRED.ports[0] <= port <= DESIRED.ports[1] for port in ports)
    node = NodePlan(DESIRED, "a host", "10.0.0.2", is_head=False).arguments("/t", client=True)
    assert node[:2] == ["--address", "10.0.0.1:8600"]
    assert "--labels" not in node  # Ray would refuse that name


def test_the_token_is_in_a_file_that_only_its_user_reads(tmp_path):
    home = ClusterHome("testing", tmp_path)
    home.create(bytes(32), HostSettings("a" * 32, "strix-a", 8421))
    file = token_file(home)
    first = file.read_text()
    file.chmod(0o644)
    assert token_file(home).stat().st_mode & 0o777 == 0o600
    assert file.read_text() == first
    env = node_env({"RAY_ADDRESS": "elsewhere", "RAY_AUTH_TOKEN": "x", "RAY_health_check_period_ms": "9"}, str(file))
    assert "RAY_ADDRESS" not in env
    assert "RAY_AUTH_TOKEN" not in env
    assert (env["RAY_AUTH_MODE"], env["RAY_health_check_period_ms"]) == ("token", "9")
    assert first not in env.values()


def test_rays_sockets_have_short_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    home = ClusterHome("testing", tmp_path / ("long" * 20))
    home.create(bytes(32), HostSettings("a" * 32, "strix-a", 8421))
    link = temp_directory(home)
    assert len(str(link)) < 40
    assert link.readlink() == home.directory / "ray" / "tmp"
    link.unlink()


def test_ranks_on_ray_do_not_take_what_ray_set_for_its_own_tasks():
    worker = {
        "PATH": "/bin",
        "RAY_JOB_ID": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_AUTH_MODE": "token",
    }
    assert ranks_environment(worker) == {"PATH": "/bin", "RAY_AUTH_MODE": "token"}
    assert ranks_environment({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}

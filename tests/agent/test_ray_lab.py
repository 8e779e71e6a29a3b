"""Ray on a cluster, by the command line, in hosts of a lab."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.cluster import client
from ferrule.cluster.messages import GetRay
from ferrule.lab import Lab, pair
from lab_hosts import Hosts, token_in

pytestmark = pytest.mark.slow
RAY_SECONDS = 180.0
"""Ray starts in six; on a busy machine it takes ten times as long."""

ASK = """
import json, ray
ray.init(namespace="ferrule", log_to_driver=False)
hosts = ["host0", "host1"]
agents = {host: ray.get_actor(host) for host in hosts}
print(json.dumps({host: ray.get(agents[host].report.remote())["devices"][0]["memory"] for host in hosts}))

@ray.remote(num_cpus=0)
def where():
    return ray.get_runtime_context().get_node_labels()["ferrule_host"]

print(json.dumps([ray.get(where.options(resources={f"ferrule_host:{host}": 0.01}).remote()) for host in hosts]))
"""

SUM = """
import os
import numpy as np
import ferrule.fabric as fabric

with fabric.init(strict=True) as group:
    x = np.full(4, group.rank + 1.0)
    group.all_reduce(x)
    print(os.environ["FERRULE_HOST_ID"], x[0])
"""


@pytest.fixture
def hosts(emulated_hosts, tmp_path):
    with Lab(pair()) as lab:
        yield Hosts(lab, tmp_path)


def ray_state(hosts, host):
    return client.ask(hosts.home(host), GetRay())


def program(hosts, host, text, **env):
    with hosts.lab.popen(
        host, [sys.executable, "-c", text], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        out, err = process.communicate(timeout=RAY_SECONDS)
    return process.returncode, out, err


def variables(hosts, host):
    lines = hosts.run(host, "env", "ray").splitlines()
    return dict(line.removeprefix("export ").split("=", 1) for line in lines)


def processes(hosts, host, word):
    """Those with ``word`` in their commands."""
    return [pid for pid in hosts.lab.processes(host) if word in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_ray_on_a_cluster(hosts, tmp_path, monkeypatch):
    token = token_in(hosts.run(0, "up", "--no-mdns", "--ray", timeout=RAY_SECONDS))
    refuse_another_version(hosts, token, tmp_path, monkeypatch)
    hosts.run(1, "up")
    hosts.until(lambda: ray_state(hosts, 1).state == "node")
    shown = json.loads(hosts.run(1, "status", "--json"))
    states = {each["name"]: each["report"]["ray"]["state"] for each in shown["hosts"]}
    assert states == {"host0": "head", "host1": "node"}
    use_it(hosts)
    launch_on_it(hosts, tmp_path)

    hosts.kill(0)
    hosts.until(lambda: ray_state(hosts, 1).state == "head")
    hosts.run(0, "up")  # it comes back as a node of the new head
    hosts.until(lambda: ray_state(hosts, 0).state == "node")
    hosts.kill(1, "ferrule.agent\0")
    hosts.until(lambda: not hosts.lab.processes(1))
    hosts.run(0, "down")
    assert not hosts.lab.processes()


def refuse_another_version(hosts, token, folder, monkeypatch):
    other = folder / "other" / "ray-2.1.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.1.0\n")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(other.parent), prepend=os.pathsep)
        hosts.run(1, "up", "--no-mdns", "--join", token)
        hosts.until(lambda: "Ray 2.1.0 here" in ray_state(hosts, 1).why)
        assert not processes(hosts, 1, b"raylet")
    assert "Ray 2.1.0 here" in hosts.run(0, "status")
    hosts.run(1, "down")


def use_it(hosts):
    env = variables(hosts, 1)
    secret = Path(env["RAY_AUTH_TOKEN_PATH"])
    assert secret.stat().st_mode & 0o777 == 0o600
    assert not [pid for host in (0, 1) for pid in processes(hosts, host, secret.read_bytes())]
    code, out, err = program(hosts, 1, ASK, **env)
    assert code == 0, err
    memory, names = map(json.loads, out.splitlines())
    assert min(memory.values()) > 1 << 28
    assert names == ["host0", "host1"]
    code, _, err = program(hosts, 1, ASK, **{**env, "RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": "0" * 64})
    assert code != 0
    assert "Failed to connect to Ray cluster" in err


def launch_on_it(hosts, folder):
    (folder / "sum.py").write_text(SUM)
    (folder / "fail.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(600)\n"
    )
    before = sorted(processes(hosts, 0, b"ferrule.agent"))
    out = hosts.run(0, "launch", "--ray", "-n", "4", str(folder / "sum.py"), timeout=RAY_SECONDS)
    assert sorted(out.splitlines()) == [f"[{rank}] host{rank // 2} 10.0" for rank in range(4)]
    said = hosts.run(0, "launch", "--ray", str(folder / "fail.py"), code=7, timeout=RAY_SECONDS)
    assert "rank 1 on host1 ended with exit code 7" in said
    hosts.until(lambda: sorted(processes(hosts, 0, b"ferrule.agent")) == before)
    hosts.until(lambda: not any(processes(hosts, host, b"launch.supervisor") for host in (0, 1)))

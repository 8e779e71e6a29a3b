"""`ferrule launch` on the hosts of a cluster, by their agents."""

import signal
import subprocess

import pytest

from ferrule.lab import Lab, pair
from lab_hosts import FERRULE, SECONDS, Hosts, token_in

pytestmark = pytest.mark.slow

SUM = """
import os, sys
import numpy as np
import ferrule.fabric as fabric

with fabric.init(strict=True) as group:
    x = np.full(4, group.rank + 1.0)
    group.all_reduce(x)
    print(os.environ["FERRULE_HOST_ID"], x[0], sys.argv[1:], os.environ["WHAT"])
"""
FAIL = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(600)\n"
SLEEP = """
import subprocess, time
subprocess.Popen(["sleep", "601"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hosts(emulated_hosts, tmp_path):
    with Lab(pair()) as lab:
        yield Hosts(lab, tmp_path)


def launcher(hosts, *words):
    env = {"FERRULE_STATE": str(hosts.folder / "state0")}
    command = [*FERRULE, "launch", "--cluster", *words]
    return hosts.lab.popen(0, command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ranks_run_on_the_hosts_of_a_cluster_and_nothing_of_them_is_left(hosts, tmp_path):
    for name, text in (("sum", SUM), ("fail", FAIL), ("sleep", SLEEP)):
        (tmp_path / f"{name}.py").write_text(text)
    token = token_in(hosts.run(0, "up", "--no-mdns"))
    hosts.run(1, "up", "--no-mdns", "--join", token)
    agents = sorted(hosts.lab.processes())

    def only_agents():
        return sorted(hosts.lab.processes()) == agents

    with launcher(hosts, "-n", "4", "--env", "WHAT=secret", str(tmp_path / "sum.py"), "--lr") as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    told = [f"[{rank}] host{rank // 2} 10.0 ['--lr'] secret" for rank in range(4)]
    assert sorted(out.splitlines()) == told
    with launcher(hosts, str(tmp_path / "fail.py")) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 7
    assert "rank 1 on host1 ended with exit code 7" in err
    with launcher(hosts, "--hosts", "host0,host7", str(tmp_path / "fail.py")) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "no host 'host7' of the cluster 'ferrule' is up, only host0, host1" in " ".join(err.split())
    hosts.until(only_agents)

    for number, code in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)):
        with launcher(hosts, str(tmp_path / "sleep.py")) as process:
            ready = {process.stdout.readline() for _ in range(2)}
            assert ready == {"[0] ready\n", "[1] ready\n"}, process.communicate(timeout=SECONDS)
            process.send_signal(number)
            process.communicate(timeout=SECONDS)
        assert process.returncode == code

        hosts.until(only_agents)

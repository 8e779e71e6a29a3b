"""Clusters as a user makes them, by the command line, in hosts of a lab."""

import json
import re
import subprocess
import sys
import time

import pytest

from ferrule.cluster import client
from ferrule.cluster.home import ClusterHome
from ferrule.lab import Lab, pair

SECONDS = 60.0
FERRULE = [sys.executable, "-m", "ferrule.cli.main"]


class Hosts:
    """Two hosts that share nothing but a cable."""

    def __init__(self, lab, folder):
        self.lab, self.folder = lab, folder

    def run(self, host, *words, code=0):
        env = {"FERRULE_STATE": str(self.folder / f"state{host}"), "COLUMNS": "200"}
        with self.lab.popen(
            host, [*FERRULE, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == code, (words, out, err)
        return out if code == 0 else err

    def states(self, host, cluster="ferrule"):
        """By the agent's socket, which is a file: the command takes a second."""
        home = ClusterHome(cluster, self.folder / f"state{host}" / "clusters")
        return {each["name"]: each["state"] for each in client.ask(home, "status")["hosts"]}


@pytest.fixture
def hosts(emulated_hosts, tmp_path):
    with Lab(pair()) as lab:
        yield Hosts(lab, tmp_path)


def token_in(words):
    return re.search(r"ferrule1-\S+", words)[0]


GARBAGE = """
import secrets, socket, sys
for port in range(1, 65536):
    try:
        with socket.create_connection((sys.argv[1], port), timeout=5) as connection:
            print(port)
            connection.sendall(secrets.token_bytes(3000))
            connection.settimeout(5)
            while connection.recv(4096):
                pass
    except OSError:
        continue
"""


@pytest.mark.slow
def test_two_commands_make_a_cluster_and_strangers_stay_out(hosts):
    token = token_in(hosts.run(0, "up"))
    # Another `up` on the network would make a second cluster of that name: it was heard by multicast DNS.
    assert "there is a cluster 'ferrule' already, on host0" in hosts.run(1, "up", code=9)
    wrong = token[:-6] + ("AAAAAA" if token[-6:] != "AAAAAA" else "BBBBBB")
    assert "damaged" in hosts.run(1, "up", "--join", wrong, code=2)
    begun = time.monotonic()
    hosts.run(1, "up", "--join", token)
    shown = json.loads(hosts.run(0, "status", "--json"))
    assert {each["name"]: each["state"] for each in shown["hosts"]} == {"host0": "here", "host1": "up"}
    assert all(each["report"]["devices"][0]["memory"] > 1 << 28 for each in shown["hosts"])
    assert hosts.states(1) == {"host0": "up", "host1": "here"}
    took = time.monotonic() - begun

    scan = hosts.lab.popen(
        1, [sys.executable, "-c", GARBAGE, hosts.lab.address(0, 1)], stdout=subprocess.PIPE, text=True
    )
    ports, _ = scan.communicate(timeout=SECONDS)
    assert ports.split() == ["8421"]
    assert hosts.states(0) == {"host0": "here", "host1": "up"}

    (cable,) = hosts.lab.between(0, 1)
    cable.cut()
    deadline = time.monotonic() + SECONDS
    while hosts.states(0)["host1"] != "lost":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cable.restore()
    while hosts.states(0)["host1"] != "up":
        assert time.monotonic() < deadline
        time.sleep(0.05)

    hosts.run(1, "leave")
    assert hosts.states(0) == {"host0": "here"}
    assert "this host is in no cluster" in hosts.run(1, "status", code=9)
    hosts.run(0, "down")
    assert not hosts.lab.processes()
    assert took < 20  # what users are promised; it takes about four


@pytest.mark.slow
def test_a_host_without_multicast_joins_by_address_and_another_key_is_refused(hosts):
    hosts.run(0, "up", "--no-mdns", "--port", "9000", "--cluster", "home")
    address = hosts.lab.address(0, 1)
    other = token_in(hosts.run(1, "up", "--no-mdns", "--cluster", "other"))
    hosts.run(1, "leave")  # its token names an address that is nobody's but its own
    refused = hosts.run(1, "up", "--join", other, "--no-mdns", "--address", f"{address}:9000", code=9)
    assert "another cluster" in refused
    token = token_in(hosts.run(0, "token"))
    hosts.run(1, "up", "--join", token, "--no-mdns", "--address", f"{address}:9000")
    hosts.run(1, "down")
    hosts.run(1, "up")  # it remembers
    deadline = time.monotonic() + SECONDS
    while hosts.states(1, "home") != {"host0": "up", "host1": "here"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)

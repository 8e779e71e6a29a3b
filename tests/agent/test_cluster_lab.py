"""Clusters as a user makes them, by the command line, in hosts of a lab."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ferrule.cluster import client
from ferrule.cluster.messages import GetStatus
from ferrule.lab import Lab, pair
from lab_hosts import FERRULE, SECONDS, Hosts, Stream, token_in

pytestmark = pytest.mark.slow


@pytest.fixture
def hosts(emulated_hosts, tmp_path):
    with Lab(pair()) as lab:
        yield Hosts(lab, tmp_path)


def serves_on_both(row):
    return (row.state, row.on, row.hosts) == ("ready", "host0", ("host0", "host1"))


def ranks_of(hosts, host):
    return {pid for pid in hosts.lab.processes(host) if Path(f"/proc/{pid}/comm").read_text() == "ferrule rank\n"}


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
    hosts.until(lambda: hosts.states(0)["host1"] == "lost")
    cable.restore()
    hosts.until(lambda: hosts.states(0)["host1"] == "up")

    hosts.run(1, "leave")
    assert hosts.states(0) == {"host0": "here"}
    assert "this host is in no cluster" in hosts.run(1, "status", code=9)
    hosts.run(0, "down")
    assert not hosts.lab.processes()
    assert took < 20  # what users are promised; it takes about four


def test_two_hosts_that_begin_at_the_same_moment_are_told_of_each_other(hosts):
    def begin(host):
        env = {"FERRULE_STATE": str(hosts.folder / f"state{host}")}
        return hosts.lab.popen(host, [*FERRULE, "up"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    both = [begin(host) for host in (0, 1)]
    for process in both:
        process.communicate(timeout=SECONDS)
    made = [process.returncode == 0 for process in both]
    assert any(made)
    if not all(made):  # one was so much later that it heard of the other, and was refused
        return
    hosts.until(lambda: client.ask(hosts.home(0), GetStatus()).rivals == ("host1",))
    assert "another cluster that is called ferrule, too, on host1" in " ".join(hosts.run(0, "status").split())
    token = token_in(hosts.run(0, "token"))
    hosts.run(1, "leave")
    hosts.run(1, "up", "--join", token)
    hosts.until(lambda: client.ask(hosts.home(0), GetStatus()).rivals == ())


def test_a_host_without_multicast_joins_by_address_and_another_key_is_refused(hosts):
    hosts.run(0, "up", "--no-mdns", "--port", "9000", "--cluster", "home")
    address = hosts.lab.address(0, 1)
    other = token_in(hosts.run(1, "up", "--no-mdns", "--cluster", "other"))
    hosts.run(1, "leave")  # its token names an address that is only its own
    refused = hosts.run(1, "up", "--join", other, "--no-mdns", "--address", f"{address}:9000", code=9)
    assert "another cluster" in refused
    token = token_in(hosts.run(0, "token"))
    hosts.run(1, "up", "--join", token, "--no-mdns", "--address", f"{address}:9000")
    hosts.run(1, "down")
    hosts.run(1, "up")  # it remembers
    hosts.until(lambda: hosts.states(1, "home") == {"host0": "up", "host1": "here"})


def test_a_served_model_survives_a_rank_a_cable_and_a_host(hosts):
    token = token_in(hosts.run(0, "up", "--no-mdns"))
    hosts.run(1, "up", "--no-mdns", "--join", token)
    shown = hosts.run(0, "serve", "--demo", "--tp", "2", "--threads", "1", timeout=180)
    assert "ferrule-demo" in shown
    (row,) = hosts.models(1)
    assert row.state == "ready"
    assert row.hosts == ("host0", "host1")
    assert "is a model 'ferrule-demo' already" in hosts.run(1, "serve", "--demo", code=9)
    undisturbed = Stream(hosts).rest()

    (cable,) = hosts.lab.between(0, 1)
    faults = {
        "a rank": lambda: hosts.kill(1, "engine.rank.worker"),
        "a cable": cable.cut,
        "a host": lambda: hosts.kill(1),
    }
    for fault, strike in faults.items():
        left = ranks_of(hosts, 0)
        stream = Stream(hosts)
        stream.read(20)
        strike()
        assert stream.rest() == undisturbed, fault
        assert left <= ranks_of(hosts, 0), fault
        if fault == "a cable":
            cable.restore()
            hosts.until(lambda: hosts.states(0)["host1"] == "up")
            # The other host took the model over meanwhile, and gave it back; then it moves back to both.
            hosts.until(lambda: all(serves_on_both(row) for row in hosts.models(0)))
            assert ranks_of(hosts, 0) == left

    # The power comes back: this host alone brings the model up again, by what is on its disk.
    hosts.run(0, "down")
    assert not hosts.lab.processes()
    hosts.run(0, "up")
    hosts.until(lambda: hosts.models(0)[0].state == "ready")
    assert Stream(hosts).rest() == undisturbed
    hosts.run(0, "stop", "ferrule-demo")
    assert hosts.models(0) == []

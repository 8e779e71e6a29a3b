"""vLLM on the hosts of a cluster: agents start a process on each other one, which becomes vLLM there."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ferrule.bench.random_model import RandomModel, save_random_model
from ferrule.engine.guests.environments import environment_of, own_package, python_of
from ferrule.engine.guests.environments.environment import Installed, interpreter, own_version
from ferrule.engine.guests.vllm.guest import VllmGuest
from ferrule.files import write_record
from ferrule.lab import Lab, pair
from ferrule.model import demo_path
from lab_hosts import FERRULE, SECONDS, Hosts, token_in

pytestmark = pytest.mark.slow
GUESTS = Path(__file__).parents[1] / "engine" / "guests"
PORT = "8445"


@pytest.fixture
def hosts(emulated_hosts, tmp_path, monkeypatch):
    """On which a program that stands for vLLM's Python is installed."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"log": str(tmp_path / "log"), "vocabulary": 131}))
    ours = environment_of("vllm")
    program = python_of(ours)
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(GUESTS)!r})\n"
        "from fake_vllm import main\nmain(sys.argv[1:])\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    version, digest = own_version(), own_package.digest()
    write_record(ours.record, Installed("vllm", ours.version, version, digest, interpreter(), {"vllm": "0.32.0"}))
    with Lab(pair()) as lab:
        yield Hosts(lab, tmp_path)


def fetched(hosts, path, body=None):
    """What the server on the first host says to a client there; None where it refuses."""
    program = (
        "import sys, urllib.request as web\n"
        "data = sys.argv[2].encode() or None\n"
        "asked = web.Request(sys.argv[1], data, {'Content-Type': 'application/json'})\n"
        "print(web.urlopen(asked, timeout=30).read().decode())"
    )
    command = [sys.executable, "-c", program, f"http://127.0.0.1:{PORT}{path}", json.dumps(body) if body else ""]
    with hosts.lab.popen(0, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as client:
        out, _ = client.communicate(timeout=SECONDS)
    return json.loads(out) if out else None


def answer(hosts, model=None):
    asked = {"model": model or demo_path().name, "prompt": [5, 9], "max_tokens": 8, "temperature": 0}
    return fetched(hosts, "/v1/completions", asked)["choices"][0]["text"]


def recovered(hosts):
    told = fetched(hosts, "/health")
    return told is not None and (told["status"], told["recoveries"]) == ("ok", 1)


def followers(log):
    told = [json.loads(line) for line in log.read_text().splitlines()]
    return [each for each in told if "host" in each]


def test_ranks_of_vllm_on_two_hosts(hosts, tmp_path):
    token = token_in(hosts.run(0, "up", "--no-mdns"))
    hosts.run(1, "up", "--no-mdns", "--join", token)
    agents = sorted(hosts.lab.processes())
    command = [*FERRULE, "serve", str(demo_path()), "--engine", "vllm", "--tp", "2", "--trust-cables", "--port", PORT]
    command += ["--hosts", "host0,host1"]
    with hosts.lab.popen(0, command, env=hosts.env(0), stdout=subprocess.PIPE, text=True) as server:
        told = ""
        while "Ctrl-C" not in told:
            line = server.stdout.readline()
            assert line, told
            told += line
        first = answer(hosts)
        hosts.until(lambda: followers(tmp_path / "log"))
        (follower,) = followers(tmp_path / "log")
        assert follower["pid"] in hosts.lab.processes(1)
        assert follower["environment"] == {
            "FERRULE_VLLM": "cpu",
            "GLOO_SOCKET_IFNAME": "cable0",
            "VLLM_HOST_IP": hosts.lab.address(1, 0),
        }
        assert f"--master-addr {hosts.lab.address(0, 1)}" in follower["line"]
        assert "--tensor-parallel-size 2" in follower["line"]

        os.kill(follower["pid"], signal.SIGKILL)  # its loss ends the guest, which is started again with another
        hosts.until(lambda: recovered(hosts))
        assert answer(hosts) == first
        server.send_signal(signal.SIGKILL)
        server.wait(SECONDS)
    hosts.until(lambda: sorted(hosts.lab.processes()) == agents)


@pytest.mark.vllm
@pytest.mark.soak
@pytest.mark.skipif(VllmGuest().find() is None, reason="needs vLLM: ferrule engines install vllm")
def test_vllm_itself_on_two_hosts(emulated_hosts, tmp_path):
    shape = RandomModel("vllm-random", 128, 256, 4, 4, 2, 4096)
    model = save_random_model(tmp_path / shape.name, shape)
    with Lab(pair()) as lab:
        hosts = Hosts(lab, tmp_path)
        token = token_in(hosts.run(0, "up", "--no-mdns"))
        hosts.run(1, "up", "--no-mdns", "--join", token)
        command = [*FERRULE, "serve", str(model), "--engine", "vllm", "--tp", "2", "--trust-cables", "--port", PORT]
        command += ["--hosts", "host0,host1", "--max-context", "512", "--threads", "1"]
        with lab.popen(0, command, env=hosts.env(0), stdout=subprocess.PIPE, text=True) as server:
            while "Ctrl-C" not in (line := server.stdout.readline()):
                assert line
            first = answer(hosts, shape.name)
            (worker,) = [pid for pid in lab.processes(1) if "VLLM::Worker" in " ".join(psutil.Process(pid).cmdline())]
            os.kill(worker, signal.SIGKILL)
            deadline = time.monotonic() + 600
            while not recovered(hosts):
                assert time.monotonic() < deadline
                time.sleep(1)
            assert answer(hosts, shape.name) == first
            server.terminate()
            server.wait(SECONDS)

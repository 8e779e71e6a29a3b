"""llama.cpp's ranks on the hosts of a cluster: agents start them, and a tunnel leads to them."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.lab import Lab, pair
from lab_hosts import FERRULE, SECONDS, Hosts, token_in

pytestmark = pytest.mark.slow
GUESTS = Path(__file__).parents[1] / "engine" / "guests"
GGUF = GUESTS.parent / "gguf"
PORT = "8444"


@pytest.fixture
def hosts(emulated_hosts, tmp_path, monkeypatch):
    for name in ("llama-server", "rpc-server"):
        program = tmp_path / name
        program.write_text(f"#!{sys.executable} -IS\n{(GUESTS / 'fake_llama.py').read_text()}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_LLAMA", json.dumps({"vocabulary": 131}))
    with Lab(pair()) as lab:
        yield Hosts(lab, tmp_path)


def model_in(folder):
    program = (
        f"import sys; sys.path[:0] = [{str(GUESTS.parent)!r}, {str(GGUF)!r}]\n"
        f"from pathlib import Path; from gguf_models import write; print(write('llama', Path({str(folder)!r}))[0])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=SECONDS)
    return told.stdout.strip()


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


def answer(hosts):
    asked = {"model": "model", "prompt": [5, 9], "max_tokens": 8, "temperature": 0}
    return fetched(hosts, "/v1/completions", asked)["choices"][0]["text"]


def recovered(hosts):
    told = fetched(hosts, "/health")
    return told is not None and (told["status"], told["recoveries"]) == ("ok", 1)


def test_ranks_of_a_guest_on_two_hosts(hosts, tmp_path):
    file = model_in(tmp_path / "model")
    token = token_in(hosts.run(0, "up", "--no-mdns"))
    hosts.run(1, "up", "--no-mdns", "--join", token)
    agents = sorted(hosts.lab.processes())
    command = [*FERRULE, "serve", file, "--engine", "llama.cpp", "--hosts", "host0,host1", "--port", PORT]
    assert "nobody is no host of the cluster" in hosts.run(0, *command[3:-3], "nobody", code=2)
    with hosts.lab.popen(0, command, env=hosts.env(0), stdout=subprocess.PIPE, text=True) as server:
        told = ""
        while "Ctrl-C" not in told:
            line = server.stdout.readline()
            assert line, told
            told += line
        assert "pipeline" in told
        first = answer(hosts)
        listening = subprocess.run(hosts.lab.command(1, ["ss", "-Hltnp"]), capture_output=True, text=True, check=True)
        places = [line.split()[3].rpartition(":")[0] for line in listening.stdout.splitlines() if "ferrule" not in line]
        assert "127.0.0.1" in places
        assert hosts.lab.address(1, 0) in places

        hosts.kill(1, "rpc-server")  # its loss ends the guest, which is started again with another
        hosts.until(lambda: recovered(hosts))
        assert answer(hosts) == first
        server.send_signal(signal.SIGKILL)
        server.wait(SECONDS)
    hosts.until(lambda: sorted(hosts.lab.processes()) == agents)

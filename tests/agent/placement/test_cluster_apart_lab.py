"""Prompts computed by a host of their own, of a lab, as a user has them served."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ferrule.lab import Lab, pair
from lab_hosts import Hosts, token_in

ASK = """
import sys, urllib.request
body = sys.argv[2].encode() or None
asked = urllib.request.Request("http://127.0.0.1:8420" + sys.argv[1], body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(asked, timeout=120).read().decode())
"""


@pytest.fixture
def hosts(emulated_hosts, tmp_path):
    with Lab(pair()) as lab:
        yield Hosts(lab, tmp_path)


def ask(hosts, path, body=None):
    words = [sys.executable, "-c", ASK, path, "" if body is None else json.dumps(body)]
    with hosts.lab.popen(0, words, stdout=subprocess.PIPE, text=True) as process:
        return json.loads(process.communicate(timeout=150)[0])


def answer(hosts, seed):
    """To a prompt of its own, of more than two blocks."""
    prompt = " ".join(str(seed * number % 997) for number in range(1, 150))
    asked = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    return ask(hosts, "/v1/completions", asked)["choices"][0]["text"]


@pytest.mark.slow
def test_prompts_go_from_host_to_host_and_answers_go_on_without_that(hosts):
    token = token_in(hosts.run(0, "up", "--no-mdns"))
    hosts.run(1, "up", "--no-mdns", "--join", token)
    words = ("serve", "demo", "--tp", "1", "--threads", "1", "--dtype", "float32", "--no-standby")
    shown = hosts.run(0, *words, "--prefill-tp", "1", "--prefill-hosts", "host1", timeout=180)
    assert "Prompts on host1" in shown

    def use():
        return ask(hosts, "/health")["hand_over"]

    def row():
        (found,) = hosts.models(0)
        return found

    hosts.until(lambda: use()["joined"] and not row().note)
    assert (row().strategy, row().hosts) == ("single, prompts apart", ("host0", "host1"))
    assert answer(hosts, 7)
    assert (use()["prompts"], use()["failed"]) == (1, 0)
    hosts.kill(1)
    assert answer(hosts, 11)
    told = "prompts are computed where answers are until other ranks can do so (none of the hosts host1"
    hosts.until(lambda: use()["state"] == "waiting" and told in row().note)
    assert row().state == "ready"
    assert answer(hosts, 13)
    assert use()["prompts"] == 1
    hosts.run(1, "up")
    hosts.until(lambda: use()["joined"])
    assert answer(hosts, 17)
    assert use()["prompts"] == 2
    assert ask(hosts, "/health")["recoveries"] == 0

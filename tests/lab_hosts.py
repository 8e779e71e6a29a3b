"""Hosts of a lab on which `ferrule` is used as on machines of their own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ferrule.cluster import client
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetStatus
from ferrule.cluster.models import models

SECONDS = 60.0
FERRULE = [sys.executable, "-m", "ferrule.cli.main"]


class Hosts:
    """Hosts that share nothing but cables."""

    def __init__(self, lab, folder):
        self.lab, self.folder = lab, folder

    def run(self, host, *words, code=0, timeout=SECONDS):
        with self.lab.popen(
            host, [*FERRULE, *words], env=self.env(host), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            out, err = process.communicate(timeout=timeout)
        assert process.returncode == code, (words, out, err)
        return out if code == 0 else err

    def env(self, host):
        return {"FERRULE_STATE": str(self.folder / f"state{host}"), "COLUMNS": "200", "FERRULE_MOVE_BACK": "2"}

    def states(self, host, cluster="ferrule"):
        """By the agent's socket, which is a file: the command takes a second."""
        return {each.name: each.state for each in client.ask(self.home(host, cluster), GetStatus()).hosts}

    def home(self, host, cluster="ferrule"):
        return ClusterHome(cluster, self.folder / f"state{host}" / "clusters")

    def models(self, host):
        with self.lab.inside(host):
            return asyncio.run(models(self.home(host)))

    def until(self, what):
        deadline = time.monotonic() + 3 * SECONDS
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def kill(self, host, among="", number=signal.SIGKILL, most=None):
        """Kill, or signal otherwise, the processes of a host with ``among`` in their commands, or so many of them;
        returns how many."""
        pids = self.lab.processes(host)
        struck = 0
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):
                if struck != most and among.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, number)
                    struck += 1
        return struck


def token_in(words):
    return re.search(r"ferrule1-\S+", words)[0]


STREAM = """
import json, sys, urllib.error, urllib.request
body = {"prompt": "def f(x):", "max_tokens": int(sys.argv[1]), "temperature": 0, "ignore_eos": True, "stream": True}
if len(sys.argv) > 2:
    body["model"] = sys.argv[2]
request = urllib.request.Request(
    "http://127.0.0.1:8420/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
try:
    answer = urllib.request.urlopen(request, timeout=120)
except urllib.error.HTTPError as error:
    print(json.dumps({"status": error.code, **json.load(error)}))
    sys.exit(0)
with answer:
    for line in answer:
        if line.startswith(b"data: {"):
            print(json.dumps(json.loads(line[6:])), flush=True)
"""


class Stream:
    """An answer of 200 tokens, as a client on host 0 sees it. ``gap``: the longest time without a token, in seconds.
    ``model``: empty for a request that names none."""

    def __init__(self, hosts, tokens=200, model=""):
        words = [sys.executable, "-c", STREAM, str(tokens), *([model] if model else [])]
        self.process = hosts.lab.popen(0, words, stdout=subprocess.PIPE, text=True)
        self.text = ""
        self.tokens = 0
        self.gap = 0.0
        self.last = None
        self.refused = None

    def read(self, tokens=None):
        while tokens is None or self.tokens < tokens:
            line = self.process.stdout.readline()
            if not line:
                break
            now = time.monotonic()
            self.gap = max(self.gap, now - (self.last or now))
            self.last = now
            event = json.loads(line)
            if event.get("status") == 503:  # not begun, and told why
                self.refused = event["error"]["message"]
                continue
            assert "error" not in event, event
            self.text += event["choices"][0]["text"]
            self.tokens += 1
        return self.text

    def rest(self):
        self.read()
        self.process.stdout.close()
        code = self.process.wait(SECONDS)
        assert code == 0, f"the client ended with status {code}"
        return self.text

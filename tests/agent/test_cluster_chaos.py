"""Fault after fault while four clients read answers:

    FERRULE_FAULTS=50 pytest -m soak tests/agent/test_cluster_chaos.py -s

Takes some ten seconds for a fault on two cores. Prints how long clients waited for their next token.
"""

import os
import random
import signal
import statistics
import sys
import threading
import time

import pytest

from ferrule.lab import Lab, pair
from lab_hosts import SECONDS, Hosts, Stream, token_in

FAULTS = int(os.environ.get("FERRULE_FAULTS", "50"))
CLIENTS = 4
TOKENS = 120
ROUND = 5
"""Faults after which the model is served anew on both hosts: faults come too soon for it to move back by itself."""


class Clients:
    """Each asks, reads its whole answer, compares it, and asks again, until told to stop."""

    def __init__(self, hosts, expected):
        self.hosts, self.expected = hosts, expected
        self.stopping = threading.Event()
        self.answers = self.refused = 0
        self.gaps = []
        self.wrong = []
        self.threads = [threading.Thread(target=self.read, name=f"client {n}") for n in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def read(self):
        while not self.stopping.is_set():
            stream = Stream(self.hosts, TOKENS)
            try:
                if stream.rest() != self.expected and not (stream.refused and not stream.text):
                    self.wrong.append(f"another answer: {stream.text!r}")
            except AssertionError as error:
                self.wrong.append(str(error))
            self.refused += stream.refused is not None
            self.answers += 1
            self.gaps.append(stream.gap)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(3 * SECONDS)
        return [thread.name for thread in self.threads if thread.is_alive()]


@pytest.mark.soak
def test_no_answer_is_lost_whatever_breaks(emulated_hosts, tmp_path):
    dice = random.Random(7)
    with Lab(pair()) as lab:
        hosts = Hosts(lab, tmp_path)
        token = token_in(hosts.run(0, "up", "--no-mdns"))
        hosts.run(1, "up", "--no-mdns", "--join", token)
        (cable,) = lab.between(0, 1)

        def cut():
            cable.cut()
            time.sleep(dice.uniform(0.2, 4.0))
            cable.restore()

        def lose_host():
            hosts.kill(1)
            time.sleep(dice.uniform(0.0, 3.0))
            hosts.run(1, "up")

        faults = {
            "a rank is killed": lambda: hosts.kill(dice.randrange(2), "engine.rank.worker"),
            "a rank stands still": lambda: hosts.kill(dice.randrange(2), "engine.rank.worker", signal.SIGSTOP, 1),
            "the cable is cut": cut,
            "an agent is killed": lambda: (hosts.kill(1, "ferrule.agent\0"), hosts.run(1, "up")),
            "a host is killed": lose_host,
        }
        expected, gaps, answers, refused = None, [], 0, 0
        for number in range(FAULTS):
            if number % ROUND == 0:
                hosts.run(0, "serve", "--demo", "--threads", "1", timeout=3 * SECONDS)
                expected = expected or Stream(hosts, TOKENS).rest()
                clients = Clients(hosts, expected)
            name = dice.choice(list(faults))
            recoveries = hosts.models(0)[0].get("recoveries", 0)
            faults[name]()
            hosts.until(lambda: [row.state for row in hosts.models(0)] == ["ready"])
            now = hosts.models(0)[0].recoveries
            sys.stdout.write(f"{number + 1}: {name}, {now - recoveries} recoveries, {clients.answers} answers\n")
            time.sleep(dice.uniform(0.0, 2.0))
            if number % ROUND == ROUND - 1 or number == FAULTS - 1:
                hanging = clients.stop()
                assert (clients.wrong, hanging) == ([], [])
                gaps, answers = gaps + clients.gaps, answers + clients.answers
                refused += clients.refused
                (row,) = hosts.models(0)
                assert (row.state, row.on) == ("ready", "host0")
                hosts.run(0, "stop", "ferrule-demo")
                hosts.until(lambda: not any(hosts.kill(host, "engine.rank.worker", 0) for host in range(2)))
        for host in range(2):
            hosts.run(host, "down")
        assert lab.processes() == []
    waits = sorted(gap for gap in gaps if gap > 0.5)
    sys.stdout.write(
        f"{FAULTS} faults, {answers} answers, {refused} refused with 503, none lost; {len(waits)} pauses of more than "
        f"half a second, median {statistics.median(waits or [0]):.1f} s, longest {max(waits or [0]):.1f} s\n"
    )

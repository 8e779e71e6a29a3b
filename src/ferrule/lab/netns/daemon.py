"""The background process that holds a lab of emulated hosts, started by `ferrule.lab.netns.control.up`.

When it ends, however it ends, the kernel takes hosts and cables away, for no other process holds them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ferrule.errors import ConfigError
from ferrule.hardware import LabProfile, find_lab
from ferrule.lab.daemon import registry
from ferrule.lab.daemon.client import ASK_SECONDS
from ferrule.lab.daemon.server import Held, Server, main
from ferrule.lab.netns.cable import Cable
from ferrule.lab.netns.faults import parse_fault
from ferrule.lab.netns.lab import Lab


class HeldLab:
    """A lab that is up, and what may be asked of it."""

    def __init__(self, folder: Path, profile: LabProfile, lab: Lab) -> None:
        self.folder = folder
        self._profile = profile
        self._lab = lab
        self._since = time.time()

    def state(self) -> dict[str, Any]:
        """What others need to enter the hosts, and to clear away what is left should this process be killed."""
        hosts = []
        for number, (name, machine) in enumerate(zip(self._profile.hosts, self._profile.machines, strict=True)):
            path = self._lab.path(number)
            found = os.stat(path)  # noqa: PTH116 - it is a link to nowhere
            addresses = {cable.interface: cable.address(number) for cable in self._lab.cables if number in cable.hosts}
            hosts.append(
                {
                    "name": name,
                    "machine": machine.name,
                    "title": machine.title,
                    "memory": machine.memory.value,
                    "memory_bandwidth": machine.memory_bandwidth.value,
                    "flops": {dtype: figure.value for dtype, figure in machine.flops.items()},
                    "path": path,
                    "inode": found.st_ino,
                    "cookie": registry.cookie(path),
                    "addresses": addresses,
                }
            )
        return {
            "name": self.folder.name,
            "profile": self._profile.name,
            "title": self._profile.title,
            "pid": os.getpid(),
            "user": f"/proc/{os.getpid()}/ns/user",
            "since": self._since,
            "boot": registry.boot(),
            "hosts": hosts,
        }

    def write_hosts_files(self) -> None:
        """For each host an /etc/hosts by which it reaches its neighbours by name, over the first cable to each."""
        for number, name in enumerate(self._profile.hosts):
            lines = ["127.0.0.1 localhost"]
            own = [cable.address(number) for cable in self._lab.cables if number in cable.hosts]
            lines += [f"{own[0]} {name}"] if own else [f"127.0.0.1 {name}"]
            for other in self._lab.topology.neighbours(number):
                lines.append(f"{self._lab.address(other, number)} {self._profile.hosts[other]}")
            (self.folder / f"hosts-{name}").write_text("\n".join(lines) + "\n")

    def status(self) -> dict[str, Any]:
        """All there is to say about it now."""
        state = self.state()
        for number, host in enumerate(state["hosts"]):
            host["processes"] = len(self._lab.processes(number))
        kinds = [cable.name for cable, _ in self._profile.cables]
        cables = [self._cable(cable, kind) for cable, kind in zip(self._lab.cables, kinds, strict=True)]
        return state | {"cables": cables}

    def _cable(self, cable: Cable, kind: str) -> dict[str, Any]:
        names = self._profile.hosts
        return {
            "name": cable.interface,
            "kind": kind,
            "hosts": [names[host] for host in cable.hosts],
            "mtu": cable.mtu,
            "faults": list(cable.faults()),
            "ends": {
                names[host]: {
                    "state": cable.state(host),
                    "address": cable.address(host),
                    "shaping": asdict(cable.shaping(host)),
                    "words": cable.shaping(host).describe(),
                    "counters": cable.counters(host),
                }
                for host in cable.hosts
            },
        }

    def fault(self, cable: str, words: list[str], sender: str | None = None) -> dict[str, Any]:
        """Let something happen to a cable. The answer comes when it has."""
        for found, (profile, _) in zip(self._lab.cables, self._profile.cables, strict=True):
            if found.interface == cable:
                number = None if sender is None else self._lab.named(sender)
                parse_fault(words, number).strike(found)
                return self._cable(found, profile.name)
        known = ", ".join(each.interface for each in self._lab.cables)
        raise ConfigError(f"the lab has no cable {cable!r}, only {known}")


@contextmanager
def hold(server: Server, wanted: str, seed: str) -> Iterator[Held]:
    """The emulated hosts of a profile, until the block ends. They are not for several threads at a time."""
    profile = find_lab(wanted)
    with Lab(profile.topology, seed=int(seed), names=profile.hosts) as lab:
        held = HeldLab(server.folder, profile, lab)
        held.write_hosts_files()

        def fault(cable: str, words: list[str], sender: str | None = None) -> dict[str, Any]:
            return server.in_main_thread(lambda: held.fault(cable, words, sender), ASK_SECONDS)

        yield Held(held.state(), {"status": lambda: server.in_main_thread(held.status, ASK_SECONDS), "fault": fault})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], hold))

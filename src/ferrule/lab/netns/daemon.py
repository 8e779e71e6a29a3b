"""The background process that holds a lab of emulated hosts, started by `ferrule.lab.netns.control.up`.

When it ends, however it ends, the kernel takes hosts and cables away, for no other process holds them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ferrule.errors import ConfigError, LabError
from ferrule.hardware import LabProfile, find_lab
from ferrule.lab.daemon import registry
from ferrule.lab.daemon.client import ASK_SECONDS
from ferrule.lab.daemon.messages import Fault, LabRequest, Status
from ferrule.lab.daemon.server import Held, Server, main
from ferrule.lab.netns.faults import parse_fault
from ferrule.lab.netns.lab import Lab
from ferrule.lab.netns.status import CableStatus, EndStatus, HostStatus, LabStatus
from ferrule.process import boot_id


class HeldLab:
    """A lab that is up: its status, and faults of its cables."""

    def __init__(self, folder: Path, profile: LabProfile, lab: Lab) -> None:
        self.folder = folder
        self._profile = profile
        self._lab = lab
        self._since = time.time()

    def write_hosts_files(self) -> None:
        """For each host an /etc/hosts by which it reaches its neighbours by name, over the first cable to each."""
        for number, name in enumerate(self._profile.hosts):
            lines = ["127.0.0.1 localhost"]
            own = [cable.address(number) for cable in self._lab.cables if number in cable.hosts]
            lines += [f"{own[0]} {name}"] if own else [f"127.0.0.1 {name}"]
            for other in self._lab.topology.neighbours(number):
                lines.append(f"{self._lab.address(other, number)} {self._profile.hosts[other]}")
            (self.folder / f"hosts-{name}").write_text("\n".join(lines) + "\n")

    def status(self) -> LabStatus:
        """Its hosts and cables as they are now."""
        return LabStatus(
            name=self.folder.name,
            profile=self._profile.name,
            title=self._profile.title,
            pid=os.getpid(),
            user=f"/proc/{os.getpid()}/ns/user",
            since=self._since,
            boot=boot_id(),
            hosts=tuple(self._host(number) for number in range(self._lab.size)),
            cables=tuple(self._cable(number) for number in range(len(self._lab.cables))),
        )

    def state(self) -> registry.State:
        """Facts by which another process cleans up if this one is killed."""
        now = self.status()
        return registry.State(now.pid, now.boot, now.user, now.hosts)

    def _host(self, number: int) -> HostStatus:
        machine, path = self._profile.machines[number], self._lab.path(number)
        return HostStatus(
            name=self._profile.hosts[number],
            machine=machine.name,
            title=machine.title,
            memory=machine.memory.value,
            memory_bandwidth=machine.memory_bandwidth.value,
            flops={dtype: figure.value for dtype, figure in machine.flops.items()},
            path=path,
            inode=os.stat(path).st_ino,  # noqa: PTH116 - a symbolic link whose target is no path
            cookie=registry.cookie(path),
            addresses={cable.interface: cable.address(number) for cable in self._lab.cables if number in cable.hosts},
            processes=len(self._lab.processes(number)),
        )

    def _cable(self, number: int) -> CableStatus:
        names, cable = self._profile.hosts, self._lab.cables[number]
        ends = {
            names[host]: EndStatus(
                state=cable.state(host),
                address=cable.address(host),
                shaping=cable.shaping(host),
                text=cable.shaping(host).describe(),
                counters=cable.counters(host),
            )
            for host in cable.hosts
        }
        kind = self._profile.cables[number][0].name
        return CableStatus(cable.interface, kind, tuple(ends), cable.mtu, cable.faults(), ends)

    def fault(self, wanted: Fault) -> CableStatus:
        """Let something happen to a cable. The answer comes when it has."""
        for number, found in enumerate(self._lab.cables):
            if found.interface == wanted.cable:
                sender = None if wanted.sender is None else self._lab.named(wanted.sender)
                parse_fault(wanted.arguments, sender).apply(found)
                return self._cable(number)
        known = ", ".join(each.interface for each in self._lab.cables)
        raise ConfigError(f"the lab has no cable {wanted.cable!r}, only {known}")


@contextmanager
def hold(server: Server, wanted: str, seed: str) -> Iterator[Held]:
    """The emulated hosts of a profile, until the block ends. They are not for several threads at a time."""
    profile = find_lab(wanted)
    with Lab(profile.topology, seed=int(seed), names=profile.hosts) as lab:
        held = HeldLab(server.folder, profile, lab)
        held.write_hosts_files()

        def answer(request: LabRequest) -> object:
            match request:
                case Status():
                    return server.in_main_thread(held.status, ASK_SECONDS)
                case Fault():
                    return server.in_main_thread(lambda: held.fault(request), ASK_SECONDS)
            raise LabError("emulated hosts have no kernels of their own; that is for `ferrule lab vm`")

        yield Held(held.state(), answer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], hold))

"""The process that holds a lab while `ferrule lab` commands come and go; run as a program by `ferrule.lab.control.up`.

It answers on a socket in the lab's directory, which only its user can reach: one line of JSON each way for a request.
When it ends, however it ends, the kernel takes hosts and cables away, for nobody else holds them.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ferrule.errors import ConfigError, FerruleError, LabError
from ferrule.hardware import LabProfile, find_lab
from ferrule.lab import registry
from ferrule.lab.faults import parse_fault
from ferrule.lab.netns.cable import Cable
from ferrule.lab.netns.lab import Lab

_REQUEST_SECONDS = 5.0
_MOST_BYTES = 1 << 20


class Holder:
    """A lab that is up, and what may be asked of it."""

    def __init__(self, folder: Path, profile: LabProfile, lab: Lab) -> None:
        self.folder = folder
        self._profile = profile
        self._lab = lab
        self._since = time.time()
        self.down = False
        self._requests: dict[str, Callable[..., Any]] = {
            "status": self.status,
            "fault": self.fault,
            "down": self.stop,
        }

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

    def stop(self) -> dict[str, Any]:
        """End after this answer."""
        self.down = True
        return {}

    def answer(self, line: bytes) -> dict[str, Any]:
        """One request: ``{"do": NAME, ...arguments}``. Errors are answers, too."""
        try:
            request = json.loads(line)
            name = request.pop("do")
            if name not in self._requests:
                raise LabError(f"the lab {self.folder.name} does not know {name!r}; another version runs it")
            return {"answer": self._requests[name](**request)}
        except FerruleError as error:
            return {"error": str(error), "code": error.code}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return {"error": f"that was no request: {error}", "code": ConfigError.code}


def serve(holder: Holder, listener: socket.socket) -> None:
    """Answer until someone asks to stop, or a signal does."""
    wake, signals = socket.socketpair()
    for end in (wake, signals):
        end.setblocking(False)
    signal.set_wakeup_fd(signals.fileno())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(wake, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while not holder.down:
        for key, _ in selector.select():
            if key.fileobj is wake:
                return
            connection = listener.accept()[0]
            with connection:
                _converse(holder, connection)


def _converse(holder: Holder, connection: socket.socket) -> None:
    """A caller that says nothing in time, or too much, or is somebody else, is left."""
    connection.settimeout(_REQUEST_SECONDS)
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        return
    try:
        line = connection.makefile("rb").readline(_MOST_BYTES)
        if line.endswith(b"\n"):
            connection.sendall(json.dumps(holder.answer(line)).encode() + b"\n")
    except OSError:
        return


def main(arguments: list[str]) -> int:
    """Arguments: the lab's directory, the profile's name or file, the seed, the descriptor of the lock it inherits.

    Says in a line what became of it; when nobody hears that any more, it ends.
    """
    folder, wanted, seed = Path(arguments[0]), arguments[1], int(arguments[2])
    os.set_inheritable(int(arguments[3]), False)
    os.umask(0o077)
    try:
        profile = find_lab(wanted)
        with Lab(profile.topology, seed=seed, names=profile.hosts) as lab:
            holder = Holder(folder, profile, lab)
            holder.write_hosts_files()
            registry.write_state(folder, holder.state())
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(folder / registry.CONTROL))
                listener.listen()
                _say({"up": True})
                serve(holder, listener)
    except (FerruleError, OSError) as error:
        with suppress(BrokenPipeError):
            _say({"error": str(error), "code": getattr(error, "code", LabError.code)})
        return 1
    return 0


def _say(words: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

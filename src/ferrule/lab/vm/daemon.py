"""The background process that holds a lab of virtual machines, started by `ferrule.lab.vm.control.up`.

It lends sessions and terminals of its guests: a caller gets the sockets themselves, and has them until it hangs up.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ferrule.errors import LabError
from ferrule.hardware import find_lab
from ferrule.lab.daemon.server import Held, Server, main
from ferrule.lab.vm.faults import strike
from ferrule.lab.vm.joined import JoinedGuests
from ferrule.lab.vm.options import VmOptions

LEND_SECONDS = 30.0
REBOOT_SECONDS = 60.0
"""What callers wait for at most."""
DONE = b"done\n"
"""What a borrower says before it hangs up if its command ended by itself."""


class HeldGuests:
    """A lab that is up, and what may be asked of it."""

    def __init__(self, folder: Path, wanted: str, lab: JoinedGuests) -> None:
        self._folder = folder
        self._wanted = wanted
        self._lab = lab
        self._since = time.time()
        self._terminals = {name: [0, 1] for name in lab.hosts}
        self._lock = threading.Lock()

    def status(self) -> dict[str, Any]:
        """What there is to say about it now."""
        state = self._lab.usb4.state()["cables"]
        return {
            "name": self._folder.name,
            "profile": self._wanted,
            "title": self._lab.profile.title,
            "pid": os.getpid(),
            "since": self._since,
            "guests": [{"name": name, "pid": self._lab[name].pid} for name in self._lab.hosts],
            "cables": [
                state[cable.name]
                | {
                    "name": cable.name,
                    "made_for": f"{cable.lanes.lanes} x {cable.lanes.gbps} Gb/s",
                    "ends": {end.host: end.address for end in cable.ends},
                }
                for cable in self._lab.wiring.cables
            ],
        }

    def lend(self, connection: socket.socket, host: str, terminal: bool) -> None:
        """Give the sockets of a session, and of a terminal if one is wanted, until the caller hangs up."""
        guest = self._lab[host]
        with self._lock:
            if terminal and not self._terminals[host]:
                raise LabError(f"all terminals of {host} are in use; leave one of its shells")
            number = self._terminals[host].pop(0) if terminal else None
        try:
            session = guest.take_session(LEND_SECONDS)
            ends = [end.fileno() for end in guest.sockets(session)]
            if number is not None:
                ends.append(guest.terminal(number).fileno())
            said = json.dumps({"answer": {"terminal": number}}).encode() + b"\n"
            try:
                socket.send_fds(connection, [said], ends)
            except OSError:  # the caller has gone, and nothing ran
                guest.free_session(session)
                raise
            connection.settimeout(None)
            heard = b""
            with suppress(OSError):
                while chunk := connection.recv(len(DONE)):
                    heard += chunk
            if heard == DONE:
                guest.free_session(session)
            else:
                with suppress(LabError):  # a guest that went down
                    guest.reset_session(session)
        finally:
            if number is not None:
                self._terminals[host].append(number)


@contextmanager
def hold(server: Server, wanted: str, options: str) -> Iterator[Held]:
    """The guests of a profile, until the block ends: they live and die with the thread that started them."""
    with VmOptions.from_json(options).joined(find_lab(wanted)) as lab:
        held = HeldGuests(server.folder, wanted, lab)

        def fault(cable: str, words: list[str], sender: str | None = None) -> dict[str, Any]:
            return strike(lab, cable, words, sender)

        def console(host: str) -> str:
            return lab[host].console()

        def reboot(host: str) -> dict[str, Any]:
            lab[host]  # says which hosts there are
            try:
                server.in_main_thread(lambda: lab.boot(host), REBOOT_SECONDS)
            except TimeoutError:
                raise LabError(f"{host} does not boot within {REBOOT_SECONDS:g} s") from None
            return {}

        answers: dict[str, Callable[..., Any]] = {
            "status": held.status,
            "fault": fault,
            "console": console,
            "reboot": reboot,
        }
        yield Held(held.status(), answers, {"lend": held.lend})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], hold))

"""The background process that holds a lab of virtual machines, started by `ferrule.lab.vm.control.up`.

It lends sessions and terminals of its guests: a caller gets the sockets themselves, and has them until it hangs up.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ferrule.errors import LabError
from ferrule.hardware import find_lab
from ferrule.lab.daemon import messages, registry
from ferrule.lab.daemon.messages import Console, Fault, LabRequest, Lend, Lent, Reboot, Status
from ferrule.lab.daemon.server import Held, Server, main
from ferrule.lab.vm.faults import apply_fault
from ferrule.lab.vm.joined import JoinedGuests
from ferrule.lab.vm.options import VmOptions
from ferrule.lab.vm.status import GuestStatus, VmStatus, WiredState

LEND_SECONDS = 30.0
REBOOT_SECONDS = 60.0
"""Time limit of callers for a reboot."""
DONE = b"done\n"
"""Sent by a borrower before it hangs up if its command ended by itself."""


class HeldGuests:
    """A lab that is up: its status, and its sessions and terminals, which it lends."""

    def __init__(self, folder: Path, wanted: str, lab: JoinedGuests) -> None:
        self._folder = folder
        self._wanted = wanted
        self._lab = lab
        self._since = time.time()
        self._terminals = {name: [0, 1] for name in lab.hosts}
        self._lock = threading.Lock()

    def status(self) -> VmStatus:
        """Its guests and cables as they are now."""
        state = self._lab.usb4.state().cables
        return VmStatus(
            name=self._folder.name,
            profile=self._wanted,
            title=self._lab.profile.title,
            pid=os.getpid(),
            since=self._since,
            guests=tuple(GuestStatus(name, self._lab[name].pid) for name in self._lab.hosts),
            cables=tuple(
                WiredState(
                    **msgspec.structs.asdict(state[cable.name]),
                    name=cable.name,
                    made_for=f"{cable.lanes.lanes} x {cable.lanes.gbps} Gb/s",
                    ends={end.host: end.address for end in cable.ends},
                )
                for cable in self._lab.wiring.cables
            ),
        )

    def lend(self, connection: socket.socket, wanted: Lend) -> None:
        """Give the sockets of a session, and of a terminal if one is wanted, until the caller hangs up."""
        host, terminal, guest = wanted.host, wanted.terminal, self._lab[wanted.host]
        with self._lock:
            if terminal and not self._terminals[host]:
                raise LabError(f"all terminals of {host} are in use; leave one of its shells")
            number = self._terminals[host].pop(0) if terminal else None
        try:
            session = guest.take_session(LEND_SECONDS)
            ends = [end.fileno() for end in guest.sockets(session)]
            if number is not None:
                ends.append(guest.terminal(number).fileno())
            try:
                socket.send_fds(connection, [messages.answer(Lent(number))], ends)
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
    with msgspec.json.decode(options, type=VmOptions).joined(find_lab(wanted)) as lab:
        held = HeldGuests(server.folder, wanted, lab)

        def reboot(host: str) -> None:
            lab[host]  # says which hosts there are
            try:
                server.in_main_thread(lambda: lab.boot(host), REBOOT_SECONDS)
            except TimeoutError:
                raise LabError(f"{host} does not boot within {REBOOT_SECONDS:g} s") from None

        def answer(request: LabRequest) -> object:
            match request:
                case Status():
                    return held.status()
                case Fault():
                    return apply_fault(lab, request.cable, request.arguments, request.sender)
                case Console():
                    return lab[request.host].console()
                case Reboot():
                    reboot(request.host)
            return None

        yield Held(registry.State(os.getpid()), answer, held.lend)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], hold))

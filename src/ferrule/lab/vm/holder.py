"""The process that holds a lab of virtual machines while `ferrule lab vm` commands come and go; see `ferrule.lab.held`.

It lends sessions and terminals of its guests: whoever asks for one gets the sockets themselves, and has them until it
hangs up.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ferrule.errors import ConfigError, FerruleError, LabError
from ferrule.hardware import find_lab
from ferrule.lab import registry
from ferrule.lab.vm.faults import strike
from ferrule.lab.vm.joined import JoinedGuests
from ferrule.lab.vm.options import VmOptions

_REQUEST_SECONDS = 5.0
LEND_SECONDS = 30.0
REBOOT_SECONDS = 60.0
"""What callers wait for at most."""
_MOST_BYTES = 1 << 20
DONE = b"done\n"
"""What a borrower says before it hangs up if its command ended by itself."""


class Holder:
    """A lab that is up, and what may be asked of it."""

    def __init__(self, folder: Path, wanted: str, lab: JoinedGuests) -> None:
        self._folder = folder
        self._wanted = wanted
        self._lab = lab
        self._since = time.time()
        self._terminals = {name: [0, 1] for name in lab.hosts}
        self._lock = threading.Lock()
        self.work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        """For the main thread, with which the guests live and die; None: end."""

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

    def answer(self, request: dict[str, Any]) -> Any:
        """What can be said at once."""
        name = request.pop("do")
        if name == "status":
            return self.status(**request)
        if name == "fault":
            return strike(self._lab, **request)
        if name == "reboot":
            return self._reboot(**request)
        if name == "console":
            return self._lab[request["host"]].console()
        if name == "down":
            self.work.put(None)
            return {}
        raise LabError(f"the lab {self._folder.name} does not know {name!r}; another version runs it")

    def _reboot(self, host: str) -> dict[str, Any]:
        done = threading.Event()
        failure: list[BaseException] = []

        def boot() -> None:
            try:
                self._lab.boot(host)
            except BaseException as error:  # noqa: BLE001 - it is whoever asked who hears of it
                failure.append(error)
            done.set()

        self._lab[host]  # says which hosts there are
        self.work.put(boot)
        if not done.wait(REBOOT_SECONDS):
            raise LabError(f"{host} does not boot within {REBOOT_SECONDS:g} s")
        if failure:
            if isinstance(failure[0], FerruleError):
                raise failure[0]
            raise LabError(f"{host} does not boot: {failure[0]}")
        return {}

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
            except OSError:  # whoever asked has gone, and nothing ran
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


def _converse(holder: Holder, connection: socket.socket) -> None:
    """A caller that says nothing in time, or too much, is left."""
    with connection:
        connection.settimeout(_REQUEST_SECONDS)
        try:
            line = connection.makefile("rb").readline(_MOST_BYTES)
            if not line.endswith(b"\n"):
                return
            try:
                request = json.loads(line)
                if request.get("do") == "lend":
                    holder.lend(connection, request["host"], bool(request["terminal"]))
                    return
                reply = {"answer": holder.answer(request)}
            except FerruleError as error:
                reply = {"error": str(error), "code": error.code}
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                reply = {"error": f"that was no request: {error}", "code": ConfigError.code}
            connection.sendall(json.dumps(reply).encode() + b"\n")
        except OSError:
            return


def _listen(holder: Holder, listener: socket.socket) -> None:
    while True:
        try:
            connection = listener.accept()[0]
        except OSError:
            return
        threading.Thread(target=_converse, args=(holder, connection), daemon=True).start()


def main(arguments: list[str]) -> int:
    """Arguments: the lab's directory, the profile's name or file, the options, the descriptor of the inherited lock."""
    folder, wanted, options = Path(arguments[0]), arguments[1], VmOptions.from_json(arguments[2])
    os.set_inheritable(int(arguments[3]), False)
    os.umask(0o077)
    try:
        trace = Path(options.trace) if options.trace else None
        lab = JoinedGuests(find_lab(wanted), options.machines(), options.template(), hops=options.hops, trace=trace)
        with lab, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            holder = Holder(folder, wanted, lab)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda *_: holder.work.put(None))
            registry.write_state(folder, holder.status())
            listener.bind(str(folder / registry.CONTROL))
            listener.listen()
            threading.Thread(target=_listen, args=(holder, listener), daemon=True).start()
            _say({"answer": {}})
            while (work := holder.work.get()) is not None:
                work()
    except (FerruleError, OSError) as error:
        with suppress(BrokenPipeError):
            _say({"error": str(error), "code": getattr(error, "code", LabError.code)})
        return 1
    return 0


def _say(words: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The process that emulates the controllers and cables of a lab; run as a program by `ferrule.lab.usb4.lab.Usb4Lab`.

Argument: a file with an `Order` as JSON. It answers on the socket ``control`` beside that file, and has a socket for
QEMU for each controller. It says one line when it is ready.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ferrule import _emulation
from ferrule.files import read_record
from ferrule.lab.daemon import messages
from ferrule.lab.daemon.messages import Down
from ferrule.lab.usb4 import trace
from ferrule.lab.usb4.messages import GetCounters, GetState, Heal, Order, Plug, Reshape, SetFault, Usb4Request
from ferrule.lab.usb4.network import Network
from ferrule.lab.usb4.profile import CONTROL, LOG, Fault, Plan, socket_name
from ferrule.lab.usb4.session import Gone, Session

_CONTROL_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 1.0
_MOST_LEFT = 64
_MOST_TAKEN = 64
_TRACED_BYTES = 4096  # of each packet, at most


class Server:
    def __init__(self, folder: Path, plan: Plan, *, training: float) -> None:
        self._folder = folder
        self._engine = _emulation.Usb4Engine()
        self._network = Network(plan, self._engine, training, self._wake)
        self._selector = selectors.DefaultSelector()
        self._sessions: dict[int, Session] = {}
        self._down = False
        for number, (host, own) in enumerate(plan.controllers()):
            self._listen(socket_name(host.name, own), self._accepting(number, host.ids))
        self._listen(CONTROL, self._accept_control)
        self._selector.register(self._engine.control_event(), selectors.EVENT_READ, self._take_control)

    def trace(self, path: Path, most: int = _TRACED_BYTES) -> None:
        with path.open("wb") as file:
            file.write(trace.head(self._network.interfaces()))
            file.flush()
            self._engine.open_trace(file.fileno(), most)

    def run(self) -> None:
        while not self._down:
            deadline = self._network.deadline()
            wait = (
                _LONGEST_WAIT_SECONDS if deadline is None else min(_LONGEST_WAIT_SECONDS, deadline - time.monotonic())
            )
            if wait <= 0:
                self._network.update(time.monotonic())
                wait = 0
            for key, _ in self._selector.select(wait):
                key.data()

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._selector.close()
        self._engine.close_trace()

    def _listen(self, name: str, accept: Callable[[socket.socket], None]) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._folder / name))
        listener.listen()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, accept))

    def _accept(self, listener: socket.socket, use: Callable[[socket.socket], None]) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # it was gone again
        use(connection)

    # --- guests

    def _accepting(self, controller: int, ids: tuple[int, int]) -> Callable[[socket.socket], None]:
        def accept(connection: socket.socket) -> None:
            self._drain(controller)
            if controller in self._sessions:
                connection.close()  # a controller is in one machine
                return

            def reset() -> None:
                self._network.reset(controller, time.monotonic())

            session = Session(connection, self._engine, controller, ids, reset)
            self._sessions[controller] = session
            self._network.power(controller, True, time.monotonic())
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(controller, session))

        return accept

    def _wake(self, controller: int) -> bool:
        session = self._sessions.get(controller)
        return session is not None and session.wake()

    def _drain(self, controller: int) -> None:
        """Read what a guest that has gone left: the next one may be there before that is done."""
        for _ in range(_MOST_LEFT):
            session = self._sessions.get(controller)
            if session is None or not select.select([session.connection], [], [], 0)[0]:
                return
            self._serve(controller, session)

    def _serve(self, controller: int, session: Session) -> None:
        if self._sessions.get(controller) is not session:
            return  # it ended since the selector spoke of it
        try:
            session.receive()
        except Gone:
            self._selector.unregister(session.connection)
            del self._sessions[controller]
            session.close()
            self._network.power(controller, False, time.monotonic())

    def _take_control(self) -> None:
        for _ in range(_MOST_TAKEN):  # then other callers; the event stays until all are taken
            packet = self._engine.take_control()
            if packet is None:
                return
            self._network.take(*packet, time.monotonic())

    # --- requests

    def _accept_control(self, connection: socket.socket) -> None:
        """One request; its answer; done."""
        with connection, suppress(OSError):
            connection.settimeout(_CONTROL_SECONDS)
            line = messages.read_line(connection)
            try:
                said = messages.answer(self._answer(messages.decode(line, Usb4Request)))
            except Exception as error:  # noqa: BLE001 - it is answered, and written down where it is a fault of ours
                said = messages.refusal(error, self._folder / LOG)
            connection.sendall(said)

    def _answer(self, request: Usb4Request) -> object:
        now = time.monotonic()
        match request:
            case GetState():
                return self._network.state()
            case GetCounters():
                return self._network.counters()
            case Plug():
                self._network.plug(request.cable, request.on, now)
            case SetFault():
                self._network.add_fault(request.cable, Fault(request.kind, request.chance, request.sender), now)
            case Heal():
                self._network.heal(request.cable, now)
            case Reshape():
                self._network.reshape(request.cable, request.rate, request.delay_us)
            case Down():
                self._down = True
        return None


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # through `close`, which writes the rest of the trace
    file = Path(arguments[0])
    order = read_record(file, Order)
    server = Server(file.parent, order.plan, training=order.training)
    if order.trace:
        server.trace(Path(order.trace))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.close(sys.stdout.fileno())
    try:
        server.run()
    finally:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

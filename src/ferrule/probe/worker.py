"""One end of `ferrule links probe`: a process on a host that measures what its standard input says.

The first line on standard input has the one-time key and the seconds after which the process ends in any case; each
further line is an order, answered by a line on standard output. It also ends when its input does. It listens on
the addresses of the links to be measured, on ports that the system chooses, and only for who proves to have the key.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ferrule import __version__
from ferrule.errors import FabricTimeout, FerruleError, LinkError
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.fabric.join.control_channel import ControlChannel, Deadline, read_exactly
from ferrule.fabric.join.dial import Call, bind, dial
from ferrule.fabric.join.handshake import Identity, Refusal, Refused, Role, Steps, accept_steps
from ferrule.fabric.join.hosts import this_host
from ferrule.fabric.join.listen import listen_on, resolve
from ferrule.fabric.transports.verbs.ports import Found
from ferrule.links import Probe
from ferrule.probe.flows import Stream, run_streams
from ferrule.probe.lend import borrow, borrowing, lend
from ferrule.probe.messages import Exchange, tcp_exchanges, time_messages
from ferrule.probe.pipes import Pipe, TcpPipe
from ferrule.probe.rdma import RdmaPipe, ports_of
from ferrule.secure import Stranger

MARK = "ferrule-probe "
"""Before each answer: what a login prints is not taken for one."""
_HANDSHAKE_SECONDS = 1.5
_CONNECT_SECONDS = 3.0
_MAX_SECONDS = 600.0


class Worker:
    """What the orders work on."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._listeners: list[socket.socket] = []
        self._places: Sequence[tuple[str, str]] = ()
        self._rdma_netdevs: dict[tuple[str, int], tuple[str, ...]] = {}

    def carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
        match order.pop("do"):
            case "describe":
                return self._describe()
            case "listen":
                return self._listen(**order)
            case "measure":
                return self._measure(**order)
            case "knock":
                return self._knock(**order)
            case what:
                raise LinkError(f"this end, ferrule {__version__}, does not know the order {what!r}")

    def _describe(self) -> dict[str, Any]:
        """Who this is, and its interfaces."""
        inventory = Probe.live().inventory()
        devices = {}
        for device in inventory.netdevs:
            peer = next((peer for peer in inventory.peers if device.name in peer.netdevs), None)
            speed = device.speed_gb_s if device.kind == "ethernet" else peer.tx_gb_s if peer is not None else None
            devices[device.name] = {"kind": device.kind, "speed": None if speed is None else speed * 1e9}
        self._rdma_netdevs = {
            (device.name, port.number): port.netdevs for device in inventory.rdma for port in device.ports
        }
        host = this_host("tcp")
        faces = own_interfaces()
        rdma = {face.name: [port.device for port in self._rdma(face.name).ports] for face in faces}
        return {
            "host": host.host,
            "identity": host.identity.partition(" ")[0],
            "kernel": os.uname().release,
            "version": __version__,
            "interfaces": [dataclasses.asdict(face) for face in faces],
            "rdma": rdma if inventory.rdma else {},
            "devices": devices,
        }

    def _listen(self, places: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """On these addresses, each with its interface, and no others any more."""
        for listener in self._listeners:
            listener.close()
        self._places = places
        self._listeners = [listen_on(address, 0, interface) for address, interface in places]
        return {"ports": [listener.getsockname()[1] for listener in self._listeners]}

    def _measure(
        self, epoch: str, dials: bool, flows: Sequence[dict[str, Any]], seconds: float, timeout: float, **what: Any
    ) -> dict[str, Any]:
        """Connect once for each flow, then time messages (``sizes``) on the second, or streams (``warm``) on all.

        With the transport ``verbs`` what is timed goes over a queue pair that the connection agrees on.
        """
        deadline = Deadline(timeout)
        with ExitStack() as opened:
            place = what.get("lend")
            listener = opened.enter_context(borrowing(place)) if place and dials else None
            connections = self._dial(epoch, flows, deadline) if dials else self._accept(epoch, flows, deadline)
            for connection in connections:
                opened.callback(connection.socket.close)
            mss = min(each.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) for each in connections)
            pipes: list[RdmaPipe] = []
            if what["transport"] == "verbs":
                for flow, connection in list(zip(flows, connections, strict=True))["sizes" in what :]:
                    name = flow["interface"] if dials else self._places[flow["listener"]][1]
                    pipes.append(RdmaPipe(connection, self._rdma(name), first=dials, deadline=deadline))
                    opened.callback(pipes[-1].close)
            if "sizes" in what:
                control, messages = connections
                if place and not dials:
                    lend(place, messages.socket)
                other = None if listener is None else opened.enter_context(borrow(listener))
                exchanges = {"verbs": Exchange(pipes[0].play)} if pipes else tcp_exchanges(messages.socket, other)
                return {
                    "mss": mss,
                    "latency": time_messages(
                        control, exchanges, what["sizes"], seconds, starts=dials, deadline=deadline
                    ),
                }
            # Forth is from the end that dials.
            carriers: Sequence[Pipe] = pipes or [TcpPipe(each.socket) for each in connections]
            streams = [
                Stream(pipe, "send" if (flow["way"] == "forth") == dials else "receive")
                for pipe, flow in zip(carriers, flows, strict=True)
            ]
            result = run_streams(streams, seconds, what["warm"], starts=dials, deadline=deadline)
            return {"mss": mss, **result}

    def _rdma(self, interface: str) -> Found:
        addresses = frozenset(face.address for face in own_interfaces() if face.name == interface)
        return ports_of(interface, addresses, self._rdma_netdevs)

    def _dial(self, epoch: str, flows: Sequence[dict[str, Any]], deadline: Deadline) -> list[ControlChannel]:
        calls = [
            Call(
                (flow["address"], flow["port"]),
                Identity(Role.MESSAGES, 1, 0, 2, bytes.fromhex(epoch), number),
                flow["source"],
                flow["interface"],
            )
            for number, flow in enumerate(flows)
        ]
        found = dial(calls, self._key, deadline)
        channels = [one for one in found if isinstance(one, ControlChannel)]
        for problem in found:
            if not isinstance(problem, ControlChannel):
                for channel in channels:
                    channel.socket.close()
                raise problem
        return channels

    def _accept(self, epoch: str, flows: Sequence[dict[str, Any]], deadline: Deadline) -> list[ControlChannel]:
        """A connection for each flow, in their order; strangers are turned away."""
        channels: dict[int, ControlChannel] = {}
        deadline = Deadline(min(deadline.left, _CONNECT_SECONDS))
        for listener in {flow["listener"]: self._listeners[flow["listener"]] for flow in flows}.values():
            expected = sum(1 for flow in flows if self._listeners[flow["listener"]] is listener)
            while expected:
                listener.settimeout(max(deadline.left, 1e-3))
                try:
                    sock = listener.accept()[0]
                except TimeoutError:
                    raise FabricTimeout(f"no connection came within {deadline.seconds:g} s") from None
                try:
                    channel = _welcome(sock, self._key, bytes.fromhex(epoch))
                except (Stranger, FerruleError, OSError):
                    sock.close()
                    continue
                channels[channel.identity.rail] = channel
                expected -= 1
        return [channels[number] for number in range(len(flows))]

    def _knock(self, address: str, port: int, source: str, interface: str, seconds: float) -> dict[str, Any]:
        """Does anything arrive here, and does the other end answer?"""
        before = _received(interface)
        answered = False
        end = time.monotonic() + seconds
        with socket.socket(resolve(address, port, interface)[0][0], socket.SOCK_STREAM) as sock:
            sock.settimeout(seconds)
            try:
                bind(sock, source, interface)
                sock.connect(resolve(address, port, interface)[0][1])
                answered = True
            except ConnectionRefusedError:
                answered = True
            except OSError:
                answered = False
        time.sleep(max(0.0, end - time.monotonic()))  # the other end knocks meanwhile
        return {"answered": answered, "frames": _received(interface) - before}


def _received(interface: str) -> int:
    """Frames that the interface has received so far."""
    import psutil

    counters = psutil.net_io_counters(pernic=True).get(interface)
    return 0 if counters is None else int(counters.packets_recv)


def _welcome(sock: socket.socket, key: bytes, epoch: bytes) -> ControlChannel:
    """The server's side of the handshake on a connection that just came."""
    deadline = Deadline(_HANDSHAKE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    steps: Steps = accept_steps(key, 0)
    answer: bytes | Refusal | None = None
    while True:
        try:
            want = next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            return ControlChannel(sock, end.value, server=True)
        if isinstance(want, int):
            answer = read_exactly(sock, want, deadline, "the other end")
        elif isinstance(want, bytes):
            sock.settimeout(max(deadline.left, 1e-3))
            sock.sendall(want)
            answer = b""
        else:
            answer = b"" if secrets.compare_digest(want.epoch, epoch) else Refusal("this is another measurement")


def main() -> int:
    """Carry out orders until standard input ends."""
    first = json.loads(sys.stdin.readline() or "{}")
    if "key" not in first:
        raise LinkError("this command is started by `ferrule links probe` and is not for people")
    # Whatever happens: not longer than that.
    signal.setitimer(signal.ITIMER_REAL, min(float(first["seconds"]), _MAX_SECONDS))
    worker = Worker(bytes.fromhex(first["key"]))
    orders: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(line)
        os._exit(0)  # the giver of orders is gone, also in the middle of one

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            answer = worker.carry_out(json.loads(orders.get()))
        except (Refused, FerruleError, OSError) as error:
            answer = {"error": str(error)}
        sys.stdout.write(MARK + json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

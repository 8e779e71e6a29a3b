"""One end of `ferrule links probe`: a process on a host that measures what its standard input says.

Standard input has `ferrule.probe.orders`, each answered by a line on standard output; where it ends, so does the
process. It listens on the addresses of the links to be measured, on ports that the system chooses, and only for who
proves to have the key.
"""

from __future__ import annotations

import functools
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

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
from ferrule.probe.orders import (
    LINE_LIMIT,
    Answer,
    Description,
    Device,
    Epoch,
    Failed,
    Key,
    Knock,
    Knocked,
    Latencies,
    Listen,
    Listening,
    Measure,
    Order,
    Rates,
    TimeMessages,
    TimeStreams,
    decode_order,
    decode_start,
    encode,
)
from ferrule.probe.pipes import Pipe, TcpPipe
from ferrule.probe.rdma import RdmaPipe, ports_of
from ferrule.secure import Stranger

MARK = b"ferrule-probe "
"""Before each answer: what a login prints is not taken for one."""
_HANDSHAKE_SECONDS = 1.5
_CONNECT_SECONDS = 3.0
_MAX_SECONDS = 600.0


class Worker:
    """State that the orders work on."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._listeners: list[socket.socket] = []
        self._places: Sequence[tuple[str, str]] = ()
        self._rdma_netdevs: dict[tuple[str, int], tuple[str, ...]] = {}

    def carry_out(self, order: Order) -> Answer:
        match order:
            case Listen():
                return self._listen(order.places)
            case TimeMessages() | TimeStreams():
                return self._measure(order)
            case Knock():
                return _knock(order)
            case _:
                return self._describe()

    def _describe(self) -> Description:
        """Description of this host and its interfaces."""
        inventory = Probe.live().inventory(devices=False)
        devices = {}
        for device in inventory.netdevs:
            peer = next((peer for peer in inventory.peers if device.name in peer.netdevs), None)
            speed = device.speed_gb_s if device.kind == "ethernet" else peer.tx_gb_s if peer is not None else None
            devices[device.name] = Device(device.kind, None if speed is None else speed * 1e9)
        self._rdma_netdevs = {
            (device.name, port.number): port.netdevs for device in inventory.rdma for port in device.ports
        }
        host = this_host("tcp")
        faces = own_interfaces()
        rdma = {face.name: tuple(port.device for port in self._rdma(face.name).ports) for face in faces}
        return Description(
            host=host.host,
            identity=host.identity.partition(" ")[0],
            kernel=os.uname().release,
            version=__version__,
            interfaces=tuple(faces),
            rdma=rdma if inventory.rdma else {},
            devices=devices,
        )

    def _listen(self, places: Sequence[tuple[str, str]]) -> Listening:
        for listener in self._listeners:
            listener.close()
        self._places = places
        self._listeners = [listen_on(address, 0, interface) for address, interface in places]
        return Listening(tuple(listener.getsockname()[1] for listener in self._listeners))

    def _measure(self, order: TimeMessages | TimeStreams) -> Latencies | Rates:
        deadline = Deadline(order.timeout)
        dials, flows = order.dials, order.flows
        place = order.lend if isinstance(order, TimeMessages) else ""
        with ExitStack() as opened:
            listener = opened.enter_context(borrowing(place)) if place and dials else None
            connections = self._dial(order, deadline) if dials else self._accept(order, deadline)
            for connection in connections:
                opened.callback(connection.socket.close)
            # A queue pair takes its connection's socket over.
            mss = min(each.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) for each in connections)
            pipes: list[RdmaPipe] = []
            if order.transport == "verbs":
                timed = list(zip(flows, connections, strict=True))[isinstance(order, TimeMessages) :]
                for flow, connection in timed:
                    name = flow.interface if dials else self._places[flow.listener][1]
                    pipes.append(RdmaPipe(connection, self._rdma(name), first=dials, deadline=deadline))
                    opened.callback(pipes[-1].close)
            if isinstance(order, TimeMessages):
                control, messages = connections
                if place and not dials:
                    lend(place, messages.socket)
                other = None if listener is None else opened.enter_context(borrow(listener))
                exchanges = {"verbs": Exchange(pipes[0].play)} if pipes else tcp_exchanges(messages.socket, other)
                latency = time_messages(control, exchanges, order.sizes, order.seconds, starts=dials, deadline=deadline)
                return Latencies(mss, tuple(latency))
            carriers: Sequence[Pipe] = pipes or [TcpPipe(each.socket) for each in connections]
            streams = [
                Stream(pipe, "send" if (flow.direction == "forth") == dials else "receive")
                for pipe, flow in zip(carriers, flows, strict=True)
            ]
            rates, busy = run_streams(streams, order.seconds, order.warm, starts=dials, deadline=deadline)
            return Rates(tuple(rates), busy)

    def _rdma(self, interface: str) -> Found:
        addresses = frozenset(face.address for face in own_interfaces() if face.name == interface)
        return ports_of(interface, addresses, self._rdma_netdevs)

    def _dial(self, order: Measure, deadline: Deadline) -> list[ControlChannel]:
        calls = [
            Call(
                (flow.address, flow.port),
                Identity(Role.MESSAGES, 1, 0, 2, order.epoch, number),
                flow.source,
                flow.interface,
            )
            for number, flow in enumerate(order.flows)
        ]
        found = dial(calls, self._key, deadline)
        channels = [one for one in found if isinstance(one, ControlChannel)]
        for problem in found:
            if not isinstance(problem, ControlChannel):
                for channel in channels:
                    channel.socket.close()
                raise problem
        return channels

    def _accept(self, order: Measure, deadline: Deadline) -> list[ControlChannel]:
        """A connection for each flow, in their order; strangers are turned away."""
        channels: dict[int, ControlChannel] = {}
        deadline = Deadline(min(deadline.left, _CONNECT_SECONDS))
        for number, expected in Counter(flow.listener for flow in order.flows).items():
            listener = self._listeners[number]
            while expected:
                listener.settimeout(max(deadline.left, 1e-3))
                try:
                    sock = listener.accept()[0]
                except TimeoutError:
                    raise FabricTimeout(f"no connection came within {deadline.seconds:g} s") from None
                try:
                    channel = _welcome(sock, self._key, order.epoch)
                except (Stranger, FerruleError, OSError):
                    sock.close()
                    continue
                channels[channel.identity.rail] = channel
                expected -= 1
        return [channels[number] for number in range(len(order.flows))]


def _knock(order: Knock) -> Knocked:
    """Does anything arrive here, and does the other end answer?"""
    before = _received(order.interface)
    end = time.monotonic() + order.seconds
    family, place = resolve(order.address, order.port, order.interface)[0]
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(order.seconds)
        try:
            bind(sock, order.source, order.interface)
            sock.connect(place)
            answered = True
        except ConnectionRefusedError:
            answered = True
        except OSError:
            answered = False
    time.sleep(max(0.0, end - time.monotonic()))  # the other end knocks meanwhile
    return Knocked(answered, _received(order.interface) - before)


def _received(interface: str) -> int:
    """Frames that the interface has received so far."""
    import psutil

    counters = psutil.net_io_counters(pernic=True).get(interface)
    return 0 if counters is None else int(counters.packets_recv)


def _welcome(sock: socket.socket, key: Key, epoch: Epoch) -> ControlChannel:
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
    lines = functools.partial(sys.stdin.buffer.readline, LINE_LIMIT + 1)
    try:
        start = decode_start(lines())
    except LinkError as error:
        raise LinkError("this command is started by `ferrule links probe` and is not for people") from error
    # Whatever happens: not longer than that.
    signal.setitimer(signal.ITIMER_REAL, min(start.seconds, _MAX_SECONDS))
    worker = Worker(start.key)
    orders: queue.Queue[bytes] = queue.Queue()

    def listen() -> None:
        for line in iter(lines, b""):
            orders.put(line)
        os._exit(0)  # the giver of orders is gone, also in the middle of one

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            answer = worker.carry_out(decode_order(orders.get()))
        except (Refused, FerruleError, OSError) as error:
            answer = Failed(str(error))
        sys.stdout.buffer.write(MARK + encode(answer) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

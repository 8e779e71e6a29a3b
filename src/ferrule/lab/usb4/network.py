"""Routers and cables together: control packets answered and passed on, plug events, paths from ring to ring."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from ferrule import _emulation
from ferrule.errors import ConfigError
from ferrule.lab.usb4 import packets
from ferrule.lab.usb4.cable import Cable, Link
from ferrule.lab.usb4.messages import CableState, ControllerState, Usb4Counters, Usb4State
from ferrule.lab.usb4.packets import Event, HotPlug, Notification, Packet, Read, Write, XDomain
from ferrule.lab.usb4.profile import Fault, FaultKind, Plan
from ferrule.lab.usb4.router import BadAccess, Router

TRAINING_SECONDS = 1.0
"""From two ends with power to a link that is up; hardware takes about as long."""

_EVENT_SECONDS = 0.255
_EVENT_TRIES = 20
_PLUG, _UNPLUG = 2, 3


@dataclass
class _PendingEvent:
    """A hot plug event that is not acknowledged yet, and those of the same port that follow it."""

    event: HotPlug
    again: float
    tries: int = 1
    then: list[HotPlug] = field(default_factory=list)


def unique_id(host: str, number: int) -> int:
    """The same for the same host in every lab."""
    return int.from_bytes(hashlib.sha256(f"{host}/{number}".encode()).digest()[:8], "little")


class Network:
    """All routers and cables of a plan. Times are seconds of a clock that the caller has.

    ``wake``: called with a controller for which a hot plug event waits; whether it sleeps, so that it cannot hear it.
    """

    def __init__(
        self,
        plan: Plan,
        engine: _emulation.Usb4Engine,
        training: float = TRAINING_SECONDS,
        wake: Callable[[int], bool] = lambda controller: False,
    ) -> None:
        self.plan = plan
        self._engine = engine
        self._training = training
        self._wake = wake
        self._random = random.Random(0)  # so that chance does the same again
        self._powered: list[bool] = []
        self.routers: list[Router] = []
        for host, number in plan.controllers():
            engine.add_controller(host.hops)
            self.routers.append(Router(host.ids, unique_id(host.name, number), host.ports, host.hops))
            self._powered.append(False)
        self.cables: list[Cable] = []
        self._at: dict[tuple[int, int], tuple[Cable, int]] = {}
        for spec in plan.cables:
            cable = Cable(len(self.cables), spec, (plan.place(spec.a), plan.place(spec.b)))
            for end in (0, 1):
                self._at[cable.ends[end]] = (cable, end)
                engine.add_wire(self.wire(cable, end), self.interface(cable, end))
            self.cables.append(cable)
            self._shape(cable)
        self._pending: dict[tuple[int, int], _PendingEvent] = {}
        self._paths: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = itertools.count()
        self._control = [{"passed": 0, "lost": 0} for _ in range(2 * len(self.cables))]

    def interfaces(self) -> list[str]:
        """Names for a trace: one of each router, and one of each end of each cable."""
        routers = [f"{host.name} router {number}" for host, number in self.plan.controllers()]
        return routers + [f"{cable.spec.name} from {host}" for cable in self.cables for host in cable.spec.hosts]

    def wire(self, cable: Cable, end: int) -> int:
        """The engine's number of the direction from this end."""
        return 2 * cable.number + end

    def interface(self, cable: Cable, end: int) -> int:
        """The trace's."""
        return len(self.routers) + self.wire(cable, end)

    def power(self, controller: int, on: bool, now: float) -> None:
        """A guest has this controller now, or has lost it."""
        self._powered[controller] = on
        self.reset(controller, now)

    def reset(self, controller: int, now: float) -> None:
        """All that its guest has set up is forgotten, and its links go down."""
        self._engine.reset(controller)
        self.routers[controller].reset()
        for end in [key for key in self._pending if key[0] == controller]:
            del self._pending[end]
        for cable in self.cables:
            if controller in (cable.ends[0][0], cable.ends[1][0]):
                self._drop(cable, now)
        self.update(now)

    # --- cables

    def update(self, now: float) -> None:
        """Do what is due: links that have trained, packets that arrive, events that are sent again."""
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()
        for cable in self.cables:
            if cable.update(now, self._has_link(cable), self._training):
                self._changed(cable, now)
            cable.show(self._routers(cable))
        for (controller, port), pending in list(self._pending.items()):
            if pending.again > now:
                continue
            if self._wake(controller):
                pending.again = now + _EVENT_SECONDS
            elif pending.tries == _EVENT_TRIES:
                self._acknowledged(controller, port, now)
            else:
                pending.again, pending.tries = now + _EVENT_SECONDS, pending.tries + 1
                self._send(controller, pending.event)
        self._connect()

    def deadline(self) -> float | None:
        """Time at which `update` has something to do."""
        times = [cable.up_at for cable in self.cables if cable.link == Link.TRAINING]
        times += [pending.again for pending in self._pending.values()] + [each[0] for each in self._later[:1]]
        return min(times, default=None)

    def cable(self, name: str) -> Cable:
        return self.cables[self.plan.cables.index(self.plan.cable(name))]

    def plug(self, name: str, plugged: bool, now: float) -> None:
        self.cable(name).plugged = plugged
        self.update(now)

    def add_fault(self, name: str, fault: Fault, now: float) -> None:
        """Raises `ConfigError`. A fault of the same kind and sender is replaced."""
        cable = self.cable(name)
        if fault.sender is not None and fault.sender not in cable.spec.hosts:
            raise ConfigError(f"{name} does not lead to {fault.sender!r}, but to {' and '.join(cable.spec.hosts)}")
        others = [each for each in cable.faults if (each.kind, each.sender) != (fault.kind, fault.sender)]
        self._set_faults(cable, [*others, fault], now)

    def heal(self, name: str, now: float) -> None:
        self._set_faults(self.cable(name), [], now)

    def reshape(self, name: str, rate: float | None, delay_us: float) -> None:
        """Another rate and delay, from now on."""
        cable = self.cable(name)
        cable.spec = replace(cable.spec, rate=rate, delay_us=delay_us)
        self._shape(cable)

    def _set_faults(self, cable: Cable, faults: list[Fault], now: float) -> None:
        lanes = cable.two_lanes
        cable.faults = faults
        self._shape(cable)
        for controller, _ in cable.ends:
            self._set_controller_faults(controller)
        if cable.two_lanes != lanes:
            self._drop(cable, now)
        self.update(now)

    def _set_controller_faults(self, controller: int) -> None:
        """Those faults of its cables that hit the controller itself."""
        ends = [(cable, end) for (at, _), (cable, end) in self._at.items() if at == controller]

        def chance(kind: FaultKind) -> float:
            return max(cable.chance_of(kind, end) for cable, end in ends)

        for transmit, kind in ((True, FaultKind.STALL_TX), (False, FaultKind.STALL_RX)):
            for ring in range(1, self._hops(controller)):
                self._engine.stall(controller, transmit, ring, chance(kind) > 0)
        self._engine.lose_interrupts(controller, chance(FaultKind.LOSE_INTERRUPTS))

    def _shape(self, cable: Cable) -> None:
        for end in (0, 1):
            self._engine.shape(self.wire(cable, end), **asdict(cable.shape(end)))

    def _hops(self, controller: int) -> int:
        return self.plan.controllers()[controller][0].hops

    def _routers(self, cable: Cable) -> tuple[Router, Router]:
        return self.routers[cable.ends[0][0]], self.routers[cable.ends[1][0]]

    def _has_link(self, cable: Cable) -> bool:
        return all(self._powered[at] and not self.routers[at].resetting(port) for at, port in cable.ends)

    def _drop(self, cable: Cable, now: float) -> None:
        """The link goes down, and trains again."""
        if cable.link == Link.UP:
            cable.retrain()
            self._changed(cable, now)
        cable.retrain()

    def _changed(self, cable: Cable, now: float) -> None:
        up = cable.link == Link.UP
        for end, (controller, port) in enumerate(cable.ends):
            router = self.routers[controller]
            if not up:
                self._engine.clear(self.wire(cable, end))
            if self._powered[controller] and router.enabled and not router.resetting(port):
                cable.show(self._routers(cable))
                self._notify(controller, port, HotPlug(0, router.lane(port), unplug=not up), now)

    def _notify(self, controller: int, port: int, event: HotPlug, now: float) -> None:
        """One event of a port at a time, as on hardware: the next one waits until it is acknowledged."""
        pending = self._pending.get((controller, port))
        if pending is not None:
            pending.then.append(event)
            return
        self._pending[controller, port] = _PendingEvent(event, now + _EVENT_SECONDS)
        self._send(controller, event)

    def _acknowledged(self, controller: int, port: int, now: float) -> None:
        """The driver has acknowledged an event, or never will."""
        pending = self._pending.pop((controller, port))
        for event in pending.then:
            self._notify(controller, port, event, now)

    # --- paths

    def _connect(self) -> None:
        wanted = {}
        for controller, router in enumerate(self.routers):
            for ring in range(1, self._hops(controller)):
                path = self._path(controller, router, ring)
                if path is not None:
                    wanted[controller, ring] = path
        for key in self._paths.keys() - wanted.keys():
            self._engine.disconnect(*key)
        for key, path in wanted.items():
            if self._paths.get(key) != path:
                self._engine.connect(*key, *path)
        self._paths = wanted

    def _path(self, controller: int, router: Router, ring: int) -> tuple[int, int, int, int] | None:
        """The wire, the other controller and its ring, and the HopID on the cable, for frames of a Tx ring."""
        first = router.hop(router.host_adapter, ring)
        port = router.port_of(first.out_adapter) if first is not None else None
        if first is None or port is None or (controller, port) not in self._at:
            return None
        cable, end = self._at[controller, port]
        if cable.link != Link.UP:
            return None
        peer, peer_port = cable.ends[1 - end]
        other = self.routers[peer]
        second = other.hop(other.lane(peer_port), first.next_hop)
        if second is None or second.out_adapter != other.host_adapter or second.next_hop >= self._hops(peer):
            return None
        if second.waits_for_credits and second.credits == 0:
            return None
        return self.wire(cable, end), peer, second.next_hop, first.next_hop

    # --- control packets

    def take(self, controller: int, kind: int, data: bytes, now: float) -> None:
        """A control packet from a guest. One that is damaged is lost, as on hardware."""
        self._engine.trace_control(controller, kind, data, False)
        try:
            packet = packets.decode(kind, data)
        except packets.PacketError:
            return
        match packet:
            case Read() | Write():
                self._send(controller, self._access(controller, packet, now))
            case Notification(event=Event.HOT_PLUG_ACK):
                port = self.routers[controller].port_of(packet.adapter)
                pending = None if port is None else self._pending.get((controller, port))
                if port is not None and pending and packet.plug == (_UNPLUG if pending.event.unplug else _PLUG):
                    self._acknowledged(controller, port, now)
            case XDomain():
                self._pass_on(controller, packet, now)
            case _:
                pass

    def _access(self, controller: int, packet: Read | Write, now: float) -> Packet:
        if packet.route:
            return self._unreachable(controller, packet.route)
        router, at = self.routers[controller], packet.address
        answered = replace(at, adapter=router.host_adapter)
        try:
            if isinstance(packet, Read):
                return Read(0, answered, router.read(at.space, at.adapter, at.offset, at.count), from_router=True)
            if len(packet.data) != at.count:
                raise BadAccess(False)
            changed = router.write(at.space, at.adapter, at.offset, packet.data)
        except BadAccess as error:
            event = Event.NO_SUCH_ADAPTER if error.adapter else Event.BAD_ADDRESS
            return Notification(0, event, at.adapter, from_router=True)
        if changed:
            self.update(now)
        return Write(0, answered, from_router=True)

    def _unreachable(self, controller: int, route: int) -> Notification:
        """Behind a cable is another host's router, which answers to its own connection manager only."""
        event = Event.NOT_CONNECTED if self._cable_of(controller, route) is None else Event.BAD_ADDRESS
        return Notification(route, event, route & 0x3F, from_router=True)

    def _cable_of(self, controller: int, route: int) -> tuple[Cable, int] | None:
        """The cable to which a route leads, and the end of it that is here; None if its link is not up."""
        port = self.routers[controller].port_of(route & 0x3F)
        found = self._at.get((controller, -1 if port is None else port))
        return found if found is not None and found[0].link == Link.UP else None

    def _pass_on(self, controller: int, packet: XDomain, now: float) -> None:
        found = self._cable_of(controller, packet.route)
        # Lost without a word: kernels up to 7.3 at least take a notification for the answer to whatever is open, and
        # free a response that they are just sending twice.
        if found is None or packet.route >> 6:
            return
        cable, end = found
        peer, peer_port = cable.ends[1 - end]
        arrives = replace(packet, route=self.routers[peer].lane(peer_port), from_router=True)
        shape = cable.shape(end)
        lost = shape.mute or self._random.random() < shape.drop
        data = bytearray(packets.encode(arrives))
        if self._random.random() < shape.corrupt:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        self._engine.trace_control(self.interface(cable, end), packet.kind, bytes(data), lost)
        self._control[self.wire(cable, end)]["lost" if lost else "passed"] += 1
        if lost:
            return

        def arrive() -> None:
            if cable.link == Link.UP:
                self._deliver(peer, arrives.kind, bytes(data))

        if shape.delay:
            heapq.heappush(self._later, (now + shape.delay, next(self._counter), arrive))
        else:
            arrive()

    def _send(self, controller: int, packet: Packet) -> None:
        self._deliver(controller, packet.kind, packets.encode(packet))

    def _deliver(self, controller: int, kind: int, data: bytes) -> None:
        self._engine.trace_control(controller, kind, data, False)
        self._engine.send_control(controller, kind, data)

    # --- state and counters

    def state(self) -> Usb4State:
        hosts: dict[str, list[ControllerState]] = {}
        for number, (host, _) in enumerate(self.plan.controllers()):
            hosts.setdefault(host.name, []).append(ControllerState(self._powered[number], self.routers[number].enabled))
        cables = {
            cable.spec.name: CableState(
                link=cable.link.value,
                plugged=cable.plugged,
                gbps=cable.spec.gbps,
                lanes=cable.width if cable.link == Link.UP else 0,
                faults=tuple(map(_fault_text, cable.faults)),
            )
            for cable in self.cables
        }
        return Usb4State(hosts, cables)

    def counters(self) -> Usb4Counters:
        hosts: dict[str, list[dict[str, int]]] = {}
        for number, (host, _) in enumerate(self.plan.controllers()):
            hosts.setdefault(host.name, []).append(self._engine.controller_counters(number))
        cables = {
            cable.spec.name: {
                host: self._engine.wire_counters(self.wire(cable, end))
                | {f"control_{what}": count for what, count in self._control[self.wire(cable, end)].items()}
                for end, host in enumerate(cable.spec.hosts)
            }
            for cable in self.cables
        }
        return Usb4Counters(hosts, cables, self._engine.trace_lost())


def _fault_text(fault: Fault) -> str:
    chance = f"={fault.chance:g}" if fault.chance != 1 else ""
    return f"{fault.kind}{chance}" + (f" from {fault.sender}" if fault.sender else "")

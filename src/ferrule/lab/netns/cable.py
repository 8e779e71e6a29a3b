"""A cable between hosts of a lab, and its faults while it is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Unpack

from ferrule.errors import LabError
from ferrule.hardware import CableSpec, Changes, Shaping, changed
from ferrule.lab.netns.interfaces import Interfaces
from ferrule.lab.netns.namespace import Namespace
from ferrule.lab.netns.pace import MOST_SEGMENT_BYTES, as_a_card, before_the_shaper, segment_bytes
from ferrule.lab.netns.panel import Flow, Panel

CableState = Literal["up", "cut", "dark"]


class Cable:
    """Two veth pairs that meet in a namespace between the hosts: the patch panel.

    So a host sees a pulled cable as it would a real one: its own interface stays up with its address and loses its
    carrier. (With one veth pair from host to host, one of them would have to take its interface down.) In the panel a
    bridge joins them, at the kernel's speed, when the cable has at most a rate; otherwise the shaper does, a thread of
    ours. A switch is the same with more than two hosts.

    ``interface``: its name on every host. Faults hit the whole cable, or with ``host`` only that host's plug: on a
    switch the others go on as before.
    """

    def __init__(
        self,
        number: int,
        spec: CableSpec,
        panel: Panel,
        hosts: Sequence[Namespace],
        kernels: Sequence[Interfaces],
        mtu: int,
        names: Sequence[str],
    ) -> None:
        self.number = number
        self.hosts = spec.hosts
        self.interface = f"cable{number}"
        self.mtu = spec.mtu or mtu
        self.spec = spec
        self._states: dict[int, CableState] = dict.fromkeys(spec.hosts, "up")
        self._shapings: dict[int, Shaping] = dict.fromkeys(spec.hosts, spec.shaping)
        self._speed = 1.0
        self._stalled = False
        self._mute: set[int] = set()
        self._panel = panel
        self._namespaces = hosts
        self._kernels = kernels
        self._names = names
        self._shaped: int | None = None
        self._segments = True

    def address(self, host: int) -> str:
        """The IPv4 address of ``host`` at its end: 10.77.NUMBER.1 at the first, and so on."""
        return f"10.77.{self.number}.{self.hosts.index(host) + 1}"

    def rate(self, host: int) -> float | None:
        """Bits per second that ``host`` may send into it; None: as fast as this machine copies."""
        rate = self._shapings[host].rate
        return None if rate is None else rate * self._speed

    def shaping(self, host: int) -> Shaping:
        """Shaping at present of what ``host`` sends."""
        return replace(self._shapings[host], rate=self.rate(host))

    def state(self, host: int) -> CableState:
        """State at one end: "up", "cut" (no carrier) or "dark" (a carrier, but nothing passes)."""
        return self._states[host]

    def faults(self) -> tuple[str, ...]:
        """Its faults now, in words, without what its specification says."""
        states = {self._names[host]: self._states[host] for host in self.hosts}
        differs = {self._names[host]: self._shapings[host].differs(self.spec.shaping) for host in self.hosts}
        found = [*_at_ends(states, "up", "at"), *_at_ends(differs, "", "from")]
        found += ["stalled"] if self._stalled else []
        found += [f"nothing arrives from {self._names[host]}" for host in sorted(self._mute)]
        found += [f"trained to {self._speed:g} of its speed"] if self._speed != 1 else []
        return tuple(found)

    def cut(self, host: int | None = None) -> None:
        """Pull it out: no carrier; what is under way is lost."""
        self._change("cut", host)

    def blackhole(self, host: int | None = None) -> None:
        """Let every packet vanish on its way while all ends think that the cable is well."""
        self._change("dark", host)

    def restore(self, host: int | None = None) -> None:
        """Undo `cut` and `blackhole`. Rates and all else stay."""
        self._change("up", host)

    def limit(self, bits_per_second: float | None, *, sender: int | None = None) -> None:
        """Change its rate, now, in both directions or only for what ``sender`` sends. None: no limit."""
        if bits_per_second is not None and bits_per_second <= 0:
            raise LabError(f"a rate must be more than 0 bit/s, not {bits_per_second:g}; use blackhole()")
        self.shape(sender=sender, rate=bits_per_second)

    def shape(self, *, sender: int | None = None, **changes: Unpack[Changes]) -> None:
        """Change any numbers of its `Shaping`, now, in both directions or only for what ``sender`` sends.

        Packets that wait for their turn in a host may be lost, as when a cable trains anew.
        """
        senders = self.hosts if sender is None else (sender,)
        shapings = {host: changed(self._shapings[host], **changes) for host in senders}
        before = {host: self.rate(host) for host in self.hosts}
        self._shapings |= shapings
        self._apply(before)

    def stall(self) -> None:
        """Nothing moves any more although there is a carrier; what is sent waits until `resume`, or is lost when the
        queue is full."""
        self._stalled = True
        self._apply()

    def resume(self) -> None:
        """Undo `stall`."""
        self._stalled = False
        self._apply()

    def mute(self, sender: int) -> None:
        """A one-way cut: nothing that ``sender`` sends arrives, while it still hears the others."""
        self._mute.add(sender)
        self._apply()

    def unmute(self, sender: int) -> None:
        """Undo `mute`."""
        self._mute.discard(sender)
        self._apply()

    def retrain(self, speed: float = 0.5) -> None:
        """Train to a part of its speed, in both directions. Raises `LabError` for a cable without a rate."""
        if not 0 < speed <= 1:
            raise LabError(f"a cable trains to a part of its speed, more than 0 and at most 1, not {speed:g}")
        if any(shaping.rate is None for shaping in self._shapings.values()):
            raise LabError(f"{self.interface} has no rate that could be halved; give it one (rate=10G)")
        before = {host: self.rate(host) for host in self.hosts}
        self._speed = speed
        self._apply(before)

    def clear(self) -> None:
        """Undo everything: as its specification says, and plugged in."""
        before = {host: self.rate(host) for host in self.hosts}
        self._speed, self._stalled = 1.0, False
        self._mute.clear()
        self._shapings = dict.fromkeys(self.hosts, self.spec.shaping)
        self.restore()
        self._apply(before)

    def counters(self, sender: int) -> dict[str, float]:
        """Counters of the frames that ``sender`` sent since the shaper carries them; empty while the kernel does."""
        if self._shaped is None:
            return {}
        return self._panel.shaper.read(self._shaped, self.hosts.index(sender))

    def panel_lines(self) -> list[str]:
        """The commands for ``ip`` in the panel that make it; `host_lines` then brings up its ends."""
        lines = [
            f"link add name {self._bridge} mtu {self.mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
        ]
        for host in self.hosts:
            port, there = self._port(host), self._namespaces[host].path
            ends = (
                f"link add name {port} mtu {self.mtu} type veth peer name {self.interface} mtu {self.mtu} netns {there}"
            )
            lines += [ends, f"link set dev {port} master {self._bridge} up"]
        return [*lines, f"link set dev {self._bridge} up"]

    def host_lines(self, host: int) -> list[str]:
        return [
            f"address add {self.address(host)}/24 dev {self.interface}",
            f"link set dev {self.interface} up",
        ]

    def begin(self) -> None:
        """Its ends are up: give it its properties."""
        self._apply(dict.fromkeys(self.hosts))

    def _change(self, state: CableState, only: int | None) -> None:
        changed_hosts = [host for host in (self.hosts if only is None else (only,)) if self._states[host] != state]
        for host in changed_hosts:
            port, before = self._port(host), self._states[host]
            # A port outside the bridge has a carrier, and nothing in the panel takes what arrives there.
            if self._shaped is None and "dark" in (state, before):
                self._panel.ports.join(port, self._bridge, state != "dark")
            if "cut" in (state, before):
                self._panel.ports.set_up(port, state != "cut")
            self._states[host] = state
        if self._shaped is not None:
            self._apply()
            if state == "cut":
                self._panel.shaper.clear(self._shaped)

    def _apply(self, rates_before: dict[int, float | None] | None = None) -> None:
        """Set the panel and the hosts' queues from our fields. The shaper first: it acts at once."""
        plain = all(shaping.plain for shaping in self._shapings.values()) and not self._stalled and not self._mute
        if self._shaped is None and not plain:
            self._engage()
        if self._shaped is not None:
            self._panel.set(self._shaped, [(self.shaping(host), self._flow(host)) for host in self.hosts])
            self._offload(not any(shaping.takes_chances for shaping in self._shapings.values()))
        for host, before in (rates_before or {}).items():
            if self.rate(host) != before:
                self._queue(host, before is not None)

    def _flow(self, host: int) -> Flow:
        if "dark" in self._states.values() and (len(self.hosts) == 2 or self._states[host] == "dark"):
            return "dark"
        if host in self._mute:
            return "mute"
        return "stalled" if self._stalled else "moves"

    def _engage(self) -> None:
        """From the bridge to the shaper. It then stays with that: so a fault acts the same the second time."""
        ports = [self._port(host) for host in self.hosts]
        for host, port in zip(self.hosts, ports, strict=True):
            if self._states[host] != "dark":
                self._panel.ports.join(port, self._bridge, False)
        self._shaped = self._panel.join(self.number, ports)
        self._panel.prepare([self._namespaces[host] for host in self.hosts])
        for host in self.hosts:
            if self.rate(host) is not None:
                self._queue(host, True)

    def _queue(self, host: int, had_rate: bool) -> None:
        """The host's own queue before the cable: a sender waits there for its turn, as before a network card."""
        rate, kernel = self.rate(host), self._kernels[host]
        if rate is None:
            if had_rate:
                kernel.unpace(self.interface)
        elif self._shaped is None:
            kernel.pace(self.interface, as_a_card(rate, self.mtu))
        else:
            kernel.pace(self.interface, before_the_shaper(rate, self.mtu, self._shapings[host].overhead))
        if self._shaped is not None:
            segment = MOST_SEGMENT_BYTES if rate is None else segment_bytes(rate, self.mtu)
            kernel.limit_segments(self.interface, segment)

    def _offload(self, on: bool) -> None:
        """Chance falls on frames, and checksums must be there for a receiver to find what was altered."""
        if on != self._segments:
            for host in self.hosts:
                self._kernels[host].offload(self.interface, on)
            self._segments = on

    @property
    def _bridge(self) -> str:
        return f"join{self.number}"

    def _port(self, host: int) -> str:
        return f"port{self.number}-{host}"


def _at_ends(found: Mapping[str, str], well: str, where: str) -> list[str]:
    """``["cut"]`` where it is the same at all ends, ``["cut at strix-1"]`` where it is not."""
    if len(set(found.values())) == 1:
        return [word for word in dict.fromkeys(found.values()) if word != well]
    return [f"{word} {where} {name}" for name, word in found.items() if word != well]

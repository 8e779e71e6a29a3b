"""A cable between hosts of a lab, and what may happen to it while it is in use."""

from __future__ import annotations

from typing import Literal

from ferrule.errors import LabError
from ferrule.lab.iproute import batch, shape
from ferrule.lab.netns import Namespace
from ferrule.lab.topology import CableSpec

CableState = Literal["up", "cut", "dark"]


class Cable:
    """Two veth pairs that meet in a bridge, in a namespace between the hosts: the patch panel.

    So a host sees a pulled cable as it would a real one: its own interface stays up with its address and loses its
    carrier. (With one veth pair from host to host, one of them would have to take its interface down.) The way
    through the bridge costs about 1.3 µs. A switch is the same with more than two hosts.

    ``interface``: its name on every host. Faults hit the whole cable, or with ``host`` only that host's plug: on a
    switch the others go on as before.
    """

    def __init__(self, number: int, spec: CableSpec, panel: Namespace, hosts: dict[int, Namespace], mtu: int) -> None:
        self.number = number
        self.hosts = spec.hosts
        self.interface = f"cable{number}"
        self.mtu = mtu
        self._states: dict[int, CableState] = dict.fromkeys(spec.hosts, "up")
        self._rates: dict[int, float | None] = dict.fromkeys(spec.hosts, spec.rate)
        self._panel = panel
        self._namespaces = hosts

    def address(self, host: int) -> str:
        """The IPv4 address of ``host`` at its end: 10.77.NUMBER.1 at the first, and so on."""
        return f"10.77.{self.number}.{self.hosts.index(host) + 1}"

    def rate(self, host: int) -> float | None:
        """Bits per second that ``host`` may send into it; None: as fast as this machine copies."""
        return self._rates[host]

    def state(self, host: int) -> CableState:
        """How it is at one end: "up", "cut" (no carrier) or "dark" (a carrier, but nothing passes)."""
        return self._states[host]

    def cut(self, host: int | None = None) -> None:
        """Pull it out: no carrier; what is under way is lost."""
        self._change("cut", host)

    def blackhole(self, host: int | None = None) -> None:
        """Let every packet vanish on its way while all ends think that the cable is well."""
        self._change("dark", host)

    def restore(self, host: int | None = None) -> None:
        """Undo `cut` and `blackhole`. Rates stay."""
        self._change("up", host)

    def limit(self, bits_per_second: float | None, *, sender: int | None = None) -> None:
        """Change its rate, now, in both directions or only for what ``sender`` sends. None: no limit.

        Packets that wait for their turn are lost, as when a cable trains anew.
        """
        if bits_per_second is not None and bits_per_second <= 0:
            raise LabError(f"a rate must be more than 0 bit/s, not {bits_per_second:g}; use blackhole()")
        for host in self.hosts if sender is None else (sender,):
            if bits_per_second is not None:
                batch(self._namespaces[host], "tc", [shape(self.interface, bits_per_second, self.mtu)])
            elif self._rates[host] is not None:
                batch(self._namespaces[host], "tc", [f"qdisc del dev {self.interface} root"])
            self._rates[host] = bits_per_second

    def panel_lines(self) -> list[str]:
        """What makes it, run by ``ip`` in the panel; `host_lines` then brings up its ends."""
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

    def _change(self, state: CableState, only: int | None) -> None:
        changed = [host for host in (self.hosts if only is None else (only,)) if self._states[host] != state]
        # A port outside the bridge has a carrier, and nobody in the panel takes what arrives there.
        turn = {"cut": "down", "dark": "nomaster up", "up": f"master {self._bridge} up"}[state]
        if changed:
            batch(self._panel, "ip", [f"link set dev {self._port(host)} {turn}" for host in changed])
        self._states |= dict.fromkeys(changed, state)

    @property
    def _bridge(self) -> str:
        return f"join{self.number}"

    def _port(self, host: int) -> str:
        return f"port{self.number}-{host}"

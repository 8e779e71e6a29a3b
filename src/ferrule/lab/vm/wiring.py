"""A profile's hosts and cables as virtual machines and emulated USB4: which controller, address and names. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.errors import ConfigError
from ferrule.hardware import LabProfile, Usb4Lanes, shipped
from ferrule.lab.vm.machine.qemu import controller_slot

MOST_HOSTS = 4
_MOST_CONTROLLERS = 2


@dataclass(frozen=True)
class End:
    """End of a cable: ``port`` of ``controller`` of ``host``; ``address``: of its interface there."""

    host: str
    controller: int
    port: int
    address: str

    @property
    def route(self) -> int:
        """By which the host's kernel calls what is at the other end: the port's first lane adapter."""
        return 1 + 2 * self.port


@dataclass(frozen=True)
class WiredCable:
    """A cable between two guests."""

    name: str
    lanes: Usb4Lanes
    ends: tuple[End, End]

    def at(self, host: str) -> tuple[End, End] | None:
        """The end at ``host`` and the other one; None where it is not plugged in there."""
        first, second = self.ends
        return {first.host: (first, second), second.host: (second, first)}.get(host)


@dataclass(frozen=True)
class Neighbour:
    """Another host, and where it is reached over the first cable to it."""

    host: str
    address: str
    cable: str


@dataclass(frozen=True)
class Wiring:
    """All guests and cables of a lab. Cables are spread over a host's controllers; two have one each, as on Strix
    Halo."""

    hosts: tuple[str, ...]
    cables: tuple[WiredCable, ...]

    def controllers(self, host: str) -> int:
        """Number of controllers of a host; at least one, also without a cable."""
        return max((end.controller + 1 for end in self._ends(host)), default=1)

    def ports(self, host: str) -> int:
        """Of each of its controllers."""
        return max((end.port + 1 for end in self._ends(host)), default=1)

    def _ends(self, host: str) -> list[End]:
        return [ends[0] for cable in self.cables if (ends := cable.at(host))]

    def neighbours(self, host: str) -> list[Neighbour]:
        """Those with a cable to ``host``, in the order of the cables."""
        found: dict[str, Neighbour] = {}
        for cable in self.cables:
            if ends := cable.at(host):
                other = ends[1]
                found.setdefault(other.host, Neighbour(other.host, other.address, cable.name))
        return list(found.values())

    def cables_file(self, host: str) -> str:
        """For the guest's ``lab-cables``: a line for each of its cables."""
        ends = [(cable.name, *found) for cable in self.cables if (found := cable.at(host))]
        return "".join(
            f"{controller_slot(own.controller)} {own.route} {name} {own.address}/24 {other.address}\n"
            for name, own, other in ends
        )

    def devices_file(self, host: str) -> str:
        """A line for each RDMA device that the driver makes of all cables to a neighbour: its name, that of the
        interface that has its addresses, own address, the peer's."""
        pairs = list(dict.fromkeys(frozenset(end.host for end in cable.ends) for cable in self.cables))
        lines = []
        for other in self.neighbours(host):
            pair = frozenset((host, other.host))
            own, peer = (f"10.79.{pairs.index(pair)}.{1 + sorted(pair).index(name)}" for name in (host, other.host))
            lines.append(f"ferrule-{other.host[:24]} frl-{other.host[:11]} {own}/24 {peer}\n")
        return "".join(lines)

    def hosts_file(self, host: str) -> str:
        own = next((ends[0].address for cable in self.cables if (ends := cable.at(host))), "127.0.0.1")
        lines = ["127.0.0.1 localhost", f"{own} {host}"]
        lines += [f"{other.address} {other.host}" for other in self.neighbours(host)]
        return "\n".join([*lines, "::1 localhost"]) + "\n"


def wire(profile: LabProfile) -> Wiring:
    """Virtual machines of the hosts and cables of ``profile``. Raises `ConfigError` where they cannot."""
    if len(profile.hosts) > MOST_HOSTS:
        raise ConfigError(f"a lab of virtual machines has at most {MOST_HOSTS} hosts; {profile.name} has more")
    wanted = [sum(number in hosts for _, hosts in profile.cables) for number in range(len(profile.hosts))]
    used = [0] * len(profile.hosts)
    cables = []
    for number, (kind, hosts) in enumerate(profile.cables):
        if kind.usb4 is None or len(hosts) != 2:
            known = ", ".join(sorted(name for name, lab in shipped().labs.items() if _all_usb4(lab)))
            what = f"a cable {kind.name}" if len(hosts) == 2 else "a switch"
            raise ConfigError(
                f"{profile.name} has {what}, and virtual machines have USB4 cables between two hosts "
                f"(usb4 = {{ lanes = 2, gbps = 20 }} in its profile); choose one of {known}"
            )
        ends = []
        for place, host in enumerate(hosts):
            port, controller = divmod(used[host], min(wanted[host], _MOST_CONTROLLERS))
            ends.append(End(profile.hosts[host], controller, port, f"10.77.{number}.{place + 1}"))
            used[host] += 1
        cables.append(WiredCable(f"cable{number}", kind.usb4, (ends[0], ends[1])))
    return Wiring(profile.hosts, tuple(cables))


def _all_usb4(lab: LabProfile) -> bool:
    return len(lab.hosts) <= MOST_HOSTS and all(kind.usb4 and len(hosts) == 2 for kind, hosts in lab.cables)

"""A lab of virtual machines: a guest for each host of a profile, joined by emulated USB4 cables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

from ferrule.errors import ConfigError
from ferrule.hardware import LabProfile
from ferrule.lab.usb4 import Usb4Cable, Usb4Host, Usb4Lab
from ferrule.lab.vm.lab import VmLab
from ferrule.lab.vm.machine.guest import Guest
from ferrule.lab.vm.machine.running import RunningGuest
from ferrule.lab.vm.wiring import End, Wiring, wire

NETWORK = ("thunderbolt_net",)
"""The module that makes a network interface of each cable; it brings thunderbolt along."""

TOOLS = ("ethtool", "iperf3")
"""Packages for looking at cables."""

_CABLES = Path(__file__).with_name("cables.sh").read_text()
_START = "lab-cables > /dev/null 2>&1 &"
_T = TypeVar("_T")


class JoinedGuests:
    """The hosts of ``profile`` as guests of ``machines``, from entering to leaving the context.

    Each is as ``template`` says, but for its name, files of its own and controllers: its ``script`` runs while it
    boots, in ``modules`` is what drives the cables, and it takes several commands at a time. ``trace``: a file for all
    that crosses the cables (pcapng). Guests die with the thread that entered the context.

    Raises `ConfigError` for a profile that has other than USB4 cables, `LabError` where there can be no guests.
    """

    def __init__(
        self,
        profile: LabProfile,
        machines: VmLab | None = None,
        template: Guest | None = None,
        *,
        hops: int = 12,
        trace: Path | None = None,
    ) -> None:
        self.profile = profile
        self.wiring: Wiring = wire(profile)
        self._machines = machines or VmLab(packages=TOOLS)
        self._template = template or Guest(script="", modules=NETWORK, cpus=1, memory_mb=1024)
        self._guests: dict[str, RunningGuest] = {}
        self._held = ExitStack()
        self._hops = hops
        self._trace = trace
        self.usb4: Usb4Lab

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.wiring.hosts

    def __getitem__(self, host: str) -> RunningGuest:
        if host not in self._guests:
            raise ConfigError(f"the lab has no host {host!r}, only {', '.join(self.hosts)}")
        return self._guests[host]

    def __enter__(self) -> Self:
        with ExitStack() as held:
            held.push(self.__exit__)  # also of guests that run when another one cannot
            hosts = [
                Usb4Host(name, self.wiring.controllers(name), self._hops, self.wiring.ports(name))
                for name in self.hosts
            ]
            self.usb4 = self._held.enter_context(Usb4Lab(hosts, usb4_cables(self.wiring), trace=self._trace))
            for name in self.hosts:
                self.boot(name)
            held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for guest in self._guests.values():
            guest.close()
        self._guests.clear()
        self._held.close()

    def boot(self, host: str) -> RunningGuest:
        """Power ``host`` on, at first or after it went down or was killed."""
        if host in self._guests:
            self._guests[host].close()
        guest = self._machines.boot(guest_of(host, self.wiring, self._template, self.usb4.sockets(host)))
        self._guests[host] = guest
        return guest

    def everywhere(self, do: Callable[[RunningGuest], _T]) -> list[_T]:
        """Do something on all hosts at a time."""
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            return list(pool.map(do, [self[name] for name in self.hosts]))

    def wait_for_cables(self, timeout: float, cable: str = "all") -> None:
        """Until what is at the other end of each cable (or of ``cable``) answers, both ways.

        Raises `GuestError` after ``timeout`` seconds; the guests' boots count, too.
        """
        if cable != "all":
            self.usb4.plan.cable(cable)  # there is one of that name
        command = f"lab-cables up {cable} {max(int(timeout), 1)}"
        self.everywhere(lambda guest: guest.check(command, timeout))


def guest_of(host: str, wiring: Wiring, template: Guest, controllers: Sequence[Path]) -> Guest:
    """The guest for ``host``: ``template`` with a name, cables and neighbours."""
    files = {
        "/lab/cables": wiring.cables_file(host),
        "/lab/devices": wiring.devices_file(host),
        "/usr/bin/lab-cables": _CABLES,
        "/etc/hosts": wiring.hosts_file(host),
    }
    return replace(
        template,
        name=host,
        script=f"{_START}\n{template.script}",
        files={**files, **template.files},
        env={"FERRULE_HOST_ID": host, "FERRULE_LAB": "vm", **template.env},
        sessions=max(template.sessions, 4),
        controllers=tuple(controllers),
    )


def usb4_cables(wiring: Wiring) -> list[Usb4Cable]:
    """The cables as `Usb4Lab` takes them."""
    return [
        Usb4Cable(
            cable.name,
            _plug(cable.ends[0], wiring),
            _plug(cable.ends[1], wiring),
            gbps=cable.lanes.gbps,
            lanes=cable.lanes.lanes,
        )
        for cable in wiring.cables
    ]


def _plug(end: End, wiring: Wiring) -> tuple[str, int]:
    """A port as `Usb4Cable` counts them: through all controllers of the host."""
    return end.host, end.controller * wiring.ports(end.host) + end.port

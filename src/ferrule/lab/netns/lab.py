"""Hosts and cables on one machine."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Self

from ferrule.errors import ConfigError, LabError
from ferrule.hardware import Topology
from ferrule.lab.netns.cable import Cable
from ferrule.lab.netns.interfaces import Interfaces
from ferrule.lab.netns.iproute import batch
from ferrule.lab.netns.namespace import ENTER, Namespace, inode_of, kill_inside, processes_in
from ferrule.lab.netns.pace import as_a_card
from ferrule.lab.netns.panel import Panel
from ferrule.process import tied
from ferrule.process.control_group import ControlGroup, processor_limit

PORT = 7700
"""Port on which rank 0 of a job listens, and any rank that others must pass: all ports of a new host are free."""

ROUTED = "routed0"
"""The interface by which a host of a forwarding lab is reached from all others."""

_MAX_CABLES = 255
_KILL_SECONDS = 5.0


def obstacle() -> str | None:
    """Reason why there can be no lab on this machine (rights, tools, kernel), or None where there can."""
    try:
        with closing(Namespace()) as namespace:
            batch(namespace, ["link add name probe type bridge", "link add name end0 type veth peer name end1"])
            with closing(Interfaces(namespace)) as kernel:
                kernel.pace("end0", as_a_card(1e6, 1500))
    except LabError as error:
        return str(error)
    return None


class Lab:
    """A context manager: inside it, the hosts of ``topology`` exist and its cables join them.

    Hosts are network namespaces, so they share this machine's files, processes and clock, but each has its own
    interfaces, addresses, ports and /sys/class/net. Nothing is forwarded: without a cable two hosts cannot reach each
    other. Cable k has the subnet 10.77.k.0/24. Nothing gets a name on this machine, so labs never meet, and all
    is gone when the process that holds the lab is, also after ``kill -9`` (the programs that it started in hosts die
    with it; only what those started in turn can live on).

    ``mtu`` in bytes, for all cables. ``ipv6``: link-local addresses too. ``forwarding``: every host is a router as
    well, and has one more address, 10.78.HOST.1 on an interface of its own, which all others reach by a shortest way;
    what needs a full mesh can use that. ``seed``: of what chance does to packets.
    ``names`` of the hosts. ``cores``: of each host, how many cores' worth of time the programs that `command` and
    `popen` start in it have together; None: all of this machine. Raises `LabError` without the right to make network
    namespaces, or without iproute2 or the kernel's bridge, and `ConfigError` where there can be no control groups for
    ``cores``. Not thread-safe.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        mtu: int = 1500,
        ipv6: bool = False,
        forwarding: bool = False,
        seed: int = 0,
        names: Sequence[str] | None = None,
        cores: Sequence[float] | None = None,
    ) -> None:
        if names is not None and (len(names) != topology.hosts or len(set(names)) != len(names)):
            raise ConfigError(f"a lab of {topology.hosts} hosts needs as many different names, not {list(names)}")
        if cores is not None and len(cores) != topology.hosts:
            raise ConfigError(f"a lab of {topology.hosts} hosts needs as many numbers of cores, not {list(cores)}")
        if len(topology.cables) > _MAX_CABLES:
            raise ConfigError(f"a lab has at most {_MAX_CABLES} cables, not {len(topology.cables)}")
        self.topology = topology
        self.cables: tuple[Cable, ...] = ()
        self._mtu = mtu
        self._ipv6 = ipv6
        self.forwarding = forwarding
        self._names = tuple(names) if names is not None else tuple(f"host{host}" for host in range(topology.hosts))
        self._limits = [processor_limit(each) for each in cores or ()]
        self._groups: list[ControlGroup] = []
        self._seed = seed
        self._panel: Panel | None = None
        self._hosts: list[Namespace] = []
        self._kernels: list[Interfaces] = []
        self._processes: list[subprocess.Popen[Any]] = []
        self._new_ports = itertools.count(PORT + 1)

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self) -> None:
        self._panel = Panel(self._seed)
        self._hosts = [Namespace(ipv6=self._ipv6) for _ in range(self.topology.hosts)]
        self._kernels = [Interfaces(namespace) for namespace in self._hosts]
        self.cables = tuple(
            Cable(number, spec, self._panel, self._hosts, self._kernels, self._mtu, self._names)
            for number, spec in enumerate(self.topology.cables)
        )
        batch(self._panel.namespace, [line for cable in self.cables for line in cable.panel_lines()])
        for host, namespace in enumerate(self._hosts):
            mine = [cable for cable in self.cables if host in cable.hosts]
            lines = [line for cable in mine for line in cable.host_lines(host)]
            batch(namespace, ["link set dev lo up", *lines, *(self._routes(host) if self.forwarding else [])])
            if self.forwarding:
                with namespace.entered():
                    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for cable in self.cables:
            cable.begin()
        for limit in self._limits:
            self._groups.append(ControlGroup(limit))
            self._groups[-1].make()

    def _routes(self, host: int) -> list[str]:
        lines = [
            f"link add name {ROUTED} type bridge",
            f"address add 10.78.{host}.1/32 dev {ROUTED}",
            f"link set dev {ROUTED} up",
        ]
        for other in range(self.size):
            hop = self.topology.next_hop(host, other)
            if hop is not None and other != host:
                cable = self.between(host, hop)[0]
                route = f"via {cable.address(hop)} dev {cable.interface} src 10.78.{host}.1"
                lines.append(f"route add 10.78.{other}.1/32 {route}")
        return lines

    @property
    def size(self) -> int:
        """The number of hosts."""
        return self.topology.hosts

    def name(self, host: int) -> str:
        """Its name, also for ranks (`FERRULE_HOST_ID`): the one given for it, or host0, host1..."""
        return self._names[host]

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    def named(self, name: str) -> int:
        """The number of the host with that name. Raises `ConfigError` where there is none."""
        if name not in self._names:
            raise ConfigError(f"the lab has no host {name!r}, only {', '.join(self._names)}")
        return self._names.index(name)

    def interfaces(self, host: int) -> tuple[str, ...]:
        """The names of its ends of cables."""
        return tuple(cable.interface for cable in self.cables if host in cable.hosts)

    def between(self, one: int, other: int) -> tuple[Cable, ...]:
        """The cables that join two hosts directly."""
        return tuple(self.cables[number] for number in self.topology.between(one, other))

    def address(self, host: int, toward: int) -> str:
        """The address of ``host`` at its end of the first cable to ``toward``. Raises `LabError` without a cable."""
        cables = self.between(host, toward)
        if not cables:
            raise LabError(f"{self.name(host)} and {self.name(toward)} share no cable")
        return cables[0].address(host)

    def path(self, host: int) -> str:
        """Path of its network namespace for any process of this machine while the lab is up: a file for `setns`."""
        return self._namespace(host).path

    def inside(self, host: int) -> AbstractContextManager[None]:
        """This thread is in ``host`` meanwhile: sockets that it makes and processes that it starts stay there."""
        return self._namespace(host).entered()

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` in ``host``; it works for any process of this machine with our rights."""
        group = ["--group", str(self._groups[host].path)] if self._groups else []
        return [sys.executable, "-I", "-S", ENTER, *group, self.path(host), *argv]

    def env(self, host: int) -> dict[str, str]:
        """Environment that makes ``host`` a machine of its own to a rank, although all share their memory."""
        return {"FERRULE_HOST_ID": self.name(host)}

    def new_port(self) -> int:
        """A port that was not given out yet, for `rank_env`: all ports of a new host are free."""
        return next(self._new_ports)

    def rank_env(self, ranks: int | None = None, *, port: int = PORT, first: int = 0) -> list[dict[str, str]]:
        """The environment of each rank when rank r runs on host ``first`` + r modulo hosts: its host, and the way to
        rank 0.

        A rank whose host has no cable to that one's is given the address of the neighbour through which it gets there;
        so the first rank of every host listens. ``port``: another one for each job that runs at the same time.
        """
        found = []
        for rank in range(self.size if ranks is None else ranks):
            host = (first + rank) % self.size
            # A socket of the launcher would be outside of the host.
            addresses = ",".join(f"{address}:{port}" for address in self._leaders(host, first % self.size))
            env = {"FERRULE_ADDRESS": addresses, "FERRULE_LISTEN_FD": ""}
            if rank < self.size:
                env["FERRULE_LISTEN"] = f":{port}"
            found.append(self.env(host) | env)
        return found

    def _leaders(self, host: int, first: int) -> list[str]:
        """Addresses at which ranks of ``host`` find rank 0, which host ``first`` has, or a rank that relays to it."""
        if host == first:
            return [cable.address(first) for cable in self.cables if first in cable.hosts] or ["127.0.0.1"]
        hop = self.topology.next_hop(host, first)
        if hop is None:
            raise LabError(f"no cables lead from {self.name(host)} to {self.name(first)}")
        return [self.address(hop, host)]

    def popen(
        self, host: int, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a program in ``host``. ``env`` is added to this process's; ``options`` are those of `subprocess.Popen`.

        It is killed when the lab is closed, or when the thread that called this ends.
        """
        environment = os.environ | self.env(host) | dict(env or {})
        process = subprocess.Popen(tied(self.command(host, argv)), env=environment, **options)
        self._processes.append(process)
        return process

    def processes(self, host: int | None = None) -> list[int]:
        """The ids of all processes in ``host`` (None: in any), however they were started."""
        return processes_in(self._hosts if host is None else [self._namespace(host)])

    def close(self) -> None:
        """Kill every process in the hosts, and let go of hosts and cables. Safe to call twice."""
        inodes = {namespace.inode for namespace in self._hosts}
        kill_inside(
            lambda pid: pid != os.getpid() and inode_of(pid) in inodes,
            _KILL_SECONDS,
            lambda: [process.poll() for process in self._processes],
        )
        for process in self._processes:
            process.kill()
            process.wait(_KILL_SECONDS)
        self._processes.clear()
        if self._panel is not None:
            self._panel.close()
        for kernel in self._kernels:
            kernel.close()
        for namespace in self._hosts:
            namespace.close()
        for group in self._groups:
            group.close()
        self._groups = []
        self._hosts, self._kernels, self._panel, self.cables = [], [], None, ()

    def _namespace(self, host: int) -> Namespace:
        if not self._hosts:
            raise LabError("this lab is not up; use it as a context manager")
        return self._hosts[host]

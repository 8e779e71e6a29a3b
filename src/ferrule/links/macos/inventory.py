"""All that macOS tells, put together."""

from __future__ import annotations

from ferrule.links.macos import machine, net, rdma
from ferrule.links.macos.thunderbolt import PROFILER, read_thunderbolt
from ferrule.links.reader import Reader
from ferrule.links.types.inventory import Inventory


def read_macos(reader: Reader, tree: str) -> Inventory:
    reader.prefetch((PROFILER, *machine.COMMANDS, *net.COMMANDS, *rdma.COMMANDS))
    ports = net.hardware_ports(reader)
    return Inventory(
        machine=machine.read_machine(reader, tree),
        thunderbolt=read_thunderbolt(reader, ports),
        netdevs=net.read_netdevs(reader, ports),
        rdma=rdma.read_rdma(reader),
        routes=net.read_routes(reader),
        firewalls=machine.read_firewalls(reader),
        unreadable=tuple(reader.unreadable),
        seen=reader.seen,
    )

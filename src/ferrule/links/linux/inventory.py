"""All that Linux tells, put together."""

from __future__ import annotations

import dataclasses

from ferrule.links.devinfo import DEVINFO
from ferrule.links.linux.addresses import ADDRESS, ROUTES, read_addressing
from ferrule.links.linux.devices import read_devices, read_nodes, read_torch
from ferrule.links.linux.firewall import filters
from ferrule.links.linux.flow_control import read_flow_control
from ferrule.links.linux.machine import COMMANDS, read_clock, read_machine, read_services
from ferrule.links.linux.net import read_netdevs
from ferrule.links.linux.net_managers import read_manager
from ferrule.links.linux.pcie import read_pcie
from ferrule.links.linux.rdma import CLASS, read_rdma, roce_netdevs
from ferrule.links.linux.thunderbolt import read_thunderbolt
from ferrule.links.reader import Reader
from ferrule.links.types.inventory import Inventory


def read_linux(reader: Reader, tree: str, *, devices: bool) -> Inventory:
    reader.prefetch((ADDRESS, *ROUTES, *COMMANDS, *filters.COMMANDS, *([DEVINFO] if reader.exists(CLASS) else ())))
    addressing = read_addressing(reader)
    services = read_services(reader)
    machine = read_machine(reader, tree, read_clock(reader, services))
    thunderbolt = read_thunderbolt(reader)
    rdma = read_rdma(reader)
    netdevs = read_flow_control(reader, read_netdevs(reader, addressing), roce_netdevs(rdma))
    netdevs = tuple(dataclasses.replace(one, manager=read_manager(reader, one.name, services)) for one in netdevs)
    return Inventory(
        machine=machine,
        thunderbolt=thunderbolt,
        netdevs=netdevs,
        rdma=rdma,
        pcie=read_pcie(reader),
        devices=read_devices(reader, machine.memory_bytes) if devices else (),
        device_nodes=read_nodes(reader) if devices else None,
        torch=read_torch(reader) if devices else None,
        routes=addressing.routes,
        firewalls=filters.read_firewalls(reader, services),
        services=services,
        unreadable=tuple(reader.unreadable),
        seen=reader.seen,
    )

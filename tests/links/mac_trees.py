"""Macs: a mesh of four Mac Studios on Thunderbolt 5, and a Mac mini whose Thunderbolt 4 cannot do RDMA."""

from __future__ import annotations

import json
from typing import Any

from tree_builder import Build

from ferrule.links.devinfo import DEVINFO
from ferrule.links.macos import machine, net, rdma, thunderbolt

DOCUMENTS = (
    "Apple TN3205: Low-latency communication with RDMA over Thunderbolt (rdma_ctl, ibv_devices, ibv_devinfo)",
    "system_profiler(8), ifconfig(8), networksetup(8), netstat(1), sw_vers(1)",
    "github.com/exo-explore/exo issues 1390 and 1543 (output of system_profiler; the port that has no RDMA)",
    "github.com/exo-explore/exo pull request 1813 (rdma_en* exist on Thunderbolt 4 but do not work)",
)
CABLES = {(1, 2): (2, 2), (1, 3): (3, 2), (1, 4): (1, 2), (2, 3): (3, 3), (2, 4): (4, 3), (3, 4): (4, 4)}
"""Of the mesh: two hosts to the receptacle at either end. Host 1's cable to host 4 is in the port beside Ethernet."""
FORBIDDEN = 1
FIRST_THUNDERBOLT = 2
"""Receptacle 1 is en2: en0 is Ethernet, en1 Wi-Fi."""


class MacBuild(Build):
    """A Mac with ``receptacles`` Thunderbolt sockets."""

    def __init__(self, about: str, number: int, receptacles: int) -> None:
        super().__init__(about, DOCUMENTS)
        self.number = number
        self.receptacles = range(1, receptacles + 1)
        self._ports: list[tuple[str, str]] = []
        self._interfaces: list[str] = []
        self._counters = [
            "Name       Mtu   Network       Address            Ipkts Ierrs     Ibytes    Opkts Oerrs     Obytes  Coll"
        ]

    def machine(
        self, name: str, model: tuple[str, str], chip: str, *, memory_gb: int, cpus: int, rdma_ctl: str
    ) -> None:
        entry = {
            "_name": "hardware_overview",
            "chip_type": chip,
            "machine_model": model[1],
            "machine_name": model[0],
            "physical_memory": f"{memory_gb} GB",
        }
        self.commands |= {
            "uname -s": "Darwin\n",
            machine.UNAME: "25.2.0 arm64\n",
            machine.NODE: f"{name}.local\n",
            machine.SW_VERS: "ProductName:\t\tmacOS\nProductVersion:\t\t26.2\nBuildVersion:\t\t25C56\n",
            machine.SYSCTL: f"machdep.cpu.brand_string: {chip}\nhw.memsize: {memory_gb << 30}\nhw.ncpu: {cpus}\n",
            machine.HARDWARE: json.dumps({"SPHardwareDataType": [entry]}),
            machine.RDMA_CTL: f"{rdma_ctl}\n",
            machine.FIREWALL: "Firewall is disabled. (State = 0)\n",
        }

    def mac(self, index: int) -> str:
        return f"02:5e:00:01:{self.number:02x}:{index:02x}"

    def interface(
        self,
        name: str,
        label: str | None,
        *,
        inet: str | None = None,
        media: str = "autoselect",
        active: bool = True,
        lines: tuple[str, ...] = (),
    ) -> None:
        index = len(self._ports) + len(self._interfaces)
        if label is not None:
            self._ports.append((label, name))
        body = [f"ether {self.mac(index)}"]
        if inet is not None:
            body.append(f"inet {inet} netmask 0xffffff00 broadcast {inet.rpartition('.')[0]}.255")
        body += [*lines, f"media: {media}", f"status: {'active' if active else 'inactive'}"]
        head = f"{name}: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500"
        self._interfaces.append("\n\t".join([head, *body]))
        self._counters.append(f"{name}  1500  <Link#{index}> {self.mac(index)}  1200 0  900000  1100 0  800000  0")

    def finish(
        self, *, speed: str, linked: dict[int, tuple[int, str, int]], rdma_active: set[int], gateway: str
    ) -> None:
        """``linked``: receptacle to (host, its model, its receptacle). ``speed``: of a link, such as ``80 Gb/s``."""
        loopback = "lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384\n\tinet 127.0.0.1 netmask 0xff000000"
        self.commands[net.IFCONFIG] = "\n".join([loopback, *self._interfaces]) + "\n"
        ports = (
            f"\nHardware Port: {label}\nDevice: {name}\nEthernet Address: {self.mac(at)}\n"
            for at, (label, name) in enumerate(self._ports)
        )
        self.commands[net.PORTS] = "".join(ports)
        self.commands[net.COUNTERS] = "\n".join(self._counters) + "\n"
        self.commands[net.ROUTES] = (
            "Routing tables\n\nInternet:\nDestination        Gateway            Flags               Netif Expire\n"
            f"default            {gateway}        UGScg                 en0       \n"
            f"{gateway.rpartition('.')[0]}        link#11            UCS                   en0      !\n"
            "127                127.0.0.1          UCS                   lo0       \n"
        )
        buses = [self._bus(receptacle, speed, linked.get(receptacle)) for receptacle in reversed(self.receptacles)]
        self.commands[thunderbolt.PROFILER] = json.dumps({"SPThunderboltDataType": buses})
        self._rdma(rdma_active)

    def _bus(self, receptacle: int, speed: str, linked: tuple[int, str, int] | None) -> dict[str, Any]:
        bus: dict[str, Any] = {
            "_name": f"thunderboltusb4_bus_{receptacle - 1}",
            "device_name_key": "Mac Studio" if len(self.receptacles) > 3 else "Mac mini",
            "domain_uuid_key": domain(self.number, receptacle),
            "receptacle_1_tag": {
                "current_speed_key": speed if linked else f"Up to {'120 Gb/s' if speed == '80 Gb/s' else speed}",
                "link_status_key": "0x2" if linked else "0x100",
                "receptacle_id_key": str(receptacle),
                "receptacle_status_key": "receptacle_connected" if linked else "receptacle_no_devices_connected",
            },
            "route_string_key": "0",
            "switch_uid_key": f"0x05AC00000000{self.number:02X}{receptacle:02X}",
            "vendor_name_key": "Apple Inc.",
        }
        if linked is not None:
            host, model, there = linked
            services = [{"_name": "service_ip", "protocol_id_key": 1}, {"_name": "x", "protocol_id_key": 64087}]
            bus["_items"] = [
                {
                    "_name": "Mac Studio" if model == "Mac15,14" else "Mac mini",
                    "device_name_key": model,
                    "domain_uuid_key": domain(host, there),
                    "services_title": services,
                    "vendor_name_key": "Apple Inc.",
                }
            ]
        return bus

    def _rdma(self, active: set[int]) -> None:
        rows = ["    device          \t   node GUID", "    ------          \t----------------"]
        told = []
        for receptacle in self.receptacles:
            name = f"rdma_en{receptacle + FIRST_THUNDERBOLT - 1}"
            state = "PORT_ACTIVE (4)" if receptacle in active else "PORT_DOWN (1)"
            rows.append(f"    {name:<16}\te{receptacle}c579{self.number:02x}9c8fac05")
            told += [
                f"hca_id:\t{name}",
                "\ttransport:\t\t\tThunderbolt (100)",
                "\tphys_port_cnt:\t\t\t1",
                "\t\tport:\t1",
            ]
            told += [f"\t\t\tstate:\t\t\t{state}", "\t\t\tmax_mtu:\t\t4096 (5)", "\t\t\tactive_mtu:\t\t4096 (5)"]
            told += ["\t\t\tlink_layer:\t\tThunderbolt", ""]
        self.commands |= {rdma.DEVICES: "\n".join(rows) + "\n", DEVINFO: "\n".join(told) + "\n"}


def domain(host: int, receptacle: int) -> str:
    """The unique id of the bus behind a receptacle."""
    return f"28CA4C30-A263-4C55-B302-9534160{host:02X}{receptacle:02X}9".upper()


def studio(number: int) -> MacBuild:
    build = MacBuild(
        f"Mac Studio (M3 Ultra) {number} of a mesh of four on Thunderbolt 5; one cable of host 1 is in the port "
        "beside Ethernet, which has no RDMA",
        number,
        6,
    )
    build.machine(
        f"studio-{number}", ("Mac Studio", "Mac15,14"), "Apple M3 Ultra", memory_gb=512, cpus=32, rdma_ctl="enabled"
    )
    linked, working = {}, set()
    for (one, other), (here, there) in CABLES.items():
        for me, mine, who, theirs in ((one, here, other, there), (other, there, one, here)):
            if me == number:
                linked[mine] = (who, "Mac15,14", theirs)
                if not (one == 1 and here == FORBIDDEN):
                    working.add(mine)
    build.interface("en0", "Ethernet", inet=f"192.168.1.10{number}", media="autoselect (10Gbase-T <full-duplex>)")
    build.interface("en1", "Wi-Fi", active=False)
    for receptacle in build.receptacles:
        up = receptacle in linked
        inet = f"10.{min(number, linked[receptacle][0])}.{max(number, linked[receptacle][0])}.{number}" if up else None
        name = f"en{receptacle + FIRST_THUNDERBOLT - 1}"
        build.interface(name, f"Thunderbolt {receptacle}", inet=inet, active=up, media="autoselect <full-duplex>")
    if number == 2:
        members = tuple(f"member: en{at} flags=3<LEARNING,DISCOVER>" for at in range(2, 8))
        build.interface("bridge0", "Thunderbolt Bridge", inet="169.254.12.7", lines=members)
    build.finish(speed="80 Gb/s", linked=linked, rdma_active=working, gateway="192.168.1.1")
    return build


def mini() -> MacBuild:
    """The devices are there and never become active."""
    build = MacBuild("Mac mini (M4) with Thunderbolt 4, linked to another one", 9, 3)
    build.machine("mini-1", ("Mac mini", "Mac16,10"), "Apple M4", memory_gb=32, cpus=10, rdma_ctl="enabled")
    build.interface("en0", "Ethernet", inet="192.168.1.109", media="autoselect (1000baseT <full-duplex>)")
    build.interface("en1", "Wi-Fi", inet="192.168.1.119")
    for receptacle in build.receptacles:
        up = receptacle == 1
        name = f"en{receptacle + FIRST_THUNDERBOLT - 1}"
        build.interface(name, f"Thunderbolt {receptacle}", inet="10.9.8.9" if up else None, active=up)
    build.finish(speed="40 Gb/s", linked={1: (8, "Mac16,10", 1)}, rdma_active=set(), gateway="192.168.1.1")
    return build


def trees() -> dict[str, MacBuild]:
    return {**{f"mac-studio-{number}": studio(number) for number in (1, 2, 3, 4)}, "mac-mini-tb4": mini()}

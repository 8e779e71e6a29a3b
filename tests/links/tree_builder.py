"""Puts records of machines together, in the formats that the kernel's and Apple's documents describe."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ferrule.links import Probe
from ferrule.links.devinfo import DEVINFO
from ferrule.links.linux.addresses import ADDRESS, ROUTES
from ferrule.links.linux.firewall.iptables import IPTABLES
from ferrule.links.linux.firewall.nftables import NFT, NFT_LINES
from ferrule.links.linux.firewall.ufw import UFW, UFW_DEFAULTS
from ferrule.links.linux.flow_control import PFC
from ferrule.links.linux.machine import CHRONY, DMI, MODINFO, SECURE_BOOT, SYSTEMCTL, TIMEDATECTL, UNITS
from ferrule.links.own import PAUSE
from ferrule.links.record import LinksRecord, parse_record

PCI = "/sys/bus/pci/devices"
THUNDERBOLT = "/sys/bus/thunderbolt/devices"
NET = "/sys/class/net"
INFINIBAND = "/sys/class/infiniband"

KERNEL_DOCUMENTS = (
    "Linux Documentation/ABI/testing/sysfs-bus-pci",
    "Linux Documentation/ABI/testing/sysfs-class-net, sysfs-class-net-statistics",
    "Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups",
    "Linux Documentation/filesystems/proc.rst",
    "proc(5), ip-address(8), ip-route(8), systemctl(1), timedatectl(1)",
)
THUNDERBOLT_DOCUMENTS = (
    "Linux Documentation/ABI/testing/sysfs-bus-thunderbolt",
    "Linux Documentation/admin-guide/thunderbolt.rst",
)
RDMA_DOCUMENTS = ("Linux Documentation/ABI/stable/sysfs-class-infiniband", "ibv_devinfo(1)", "ethtool(8), dcb-pfc(8)")


PARTS = ("files", "directories", "links", "errors", "commands")


def probe_of(name: str, record: LinksRecord | Mapping[str, Any]) -> Probe:
    """Of a record, which may lack parts, as its file is opened."""
    if isinstance(record, Mapping):
        form = {"format": "ferrule-links-record", "version": 1, "header": {}}
        record = {**form, **{part: {} for part in PARTS}, **record}
    return Probe(parse_record(name, msgspec.json.encode(record), name))


@dataclass
class Build:
    """A record that is being made. ``about``: the machine in a line; ``sources``: the documents it follows."""

    about: str
    sources: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    directories: dict[str, list[str]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        header = {
            "machine": self.about,
            "constructed": "No machine was recorded: this follows public documents of the formats.",
            "from": list(self.sources),
        }
        tables = {name: dict(sorted(getattr(self, name).items())) for name in PARTS}
        return {"format": "ferrule-links-record", "version": 1, "header": header, **tables}

    def put(self, folder: str, **values: object) -> None:
        """Attributes of one line each."""
        for name, value in values.items():
            self.files[f"{folder}/{name}"] = f"{value}\n"


class LinuxBuild(Build):
    """A Linux machine."""

    def __init__(self, about: str, *sources: str) -> None:
        super().__init__(about, (*KERNEL_DOCUMENTS, *sources))
        self._addresses: list[dict[str, Any]] = []
        self._routes: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        self._groups = 0
        self._modules: dict[str, str] = {}
        self._devinfo: list[str] = []

    def machine(
        self,
        name: str,
        *,
        os_release: dict[str, str],
        kernel: str,
        product: tuple[str, str],
        cpu: str | None,
        cpus: int,
        memory_kb: int,
        arch: str = "x86_64",
        command_line: str = "BOOT_IMAGE=/vmlinuz root=redacted ro quiet",
        memlock: str = "8388608",
        secure_boot: bool | None = False,
        active: tuple[str, ...] = ("NetworkManager", "systemd-timesyncd"),
        available: tuple[str, ...] = (),
        synchronized: bool = True,
    ) -> None:
        self.put("/proc/sys/kernel", hostname=name, ostype="Linux", osrelease=kernel, arch=arch)
        self.files["/proc/cmdline"] = command_line + "\n"
        self.files["/etc/os-release"] = "".join(f'{key}="{value}"\n' for key, value in os_release.items())
        self.files["/proc/meminfo"] = f"MemTotal:       {memory_kb} kB\n"
        self.files["/proc/cpuinfo"] = f"processor\t: 0\nmodel name\t: {cpu}\n" if cpu else "processor\t: 0\n"
        self.put("/sys/devices/system/cpu", online=f"0-{cpus - 1}")
        self.put(DMI, sys_vendor=product[0], product_name=product[1])
        self.files["/proc/self/limits"] = (
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            f"Max locked memory         {memlock:<21}{memlock:<21}bytes     \n"
        )
        if secure_boot is not None:
            self.files[SECURE_BOOT] = "\x06\0\0\0" + ("\1" if secure_boot else "\0")
        self.put("/sys/kernel/security", lockdown="none [integrity] confidentiality" if secure_boot else "[none]")
        self.directories["/sys/kernel/iommu_groups"] = []
        self.commands[SYSTEMCTL] = "".join("active\n" if unit in active else "inactive\n" for unit in UNITS)
        answer = "yes" if synchronized else "no"
        self.commands[TIMEDATECTL] = f"NTP={answer}\nNTPSynchronized={answer}\n"
        if "chronyd" in active or "chrony" in active:
            numbers = "-0.000021,0.000018,0.000120,-4.2,0.001,0.05,0.002,0.0003,64.5,Normal"
            self.commands[CHRONY] = f"0A000001,10.0.0.1,3,1763766000.1,{numbers}\n"
        self.commands[MODINFO] = "".join(f"{module}\n" for module in available)
        self.errors |= dict.fromkeys((NFT, NFT_LINES), "EPERM")
        if "ufw" in active:
            self.errors |= dict.fromkeys((UFW, IPTABLES), "EPERM")
            self.files[UFW_DEFAULTS] = 'IPV6=yes\nDEFAULT_INPUT_POLICY="DROP"\nDEFAULT_OUTPUT_POLICY="ACCEPT"\n'

    def loaded(self, *modules: str, taint: str = "") -> None:
        self._modules |= dict.fromkeys(modules, f" ({taint})" if taint else "")
        lines = (f"{name} 65536 0 - Live 0x0000000000000000{mark}\n" for name, mark in self._modules.items())
        self.files["/proc/modules"] = "".join(lines)

    def pci(
        self,
        parents: str,
        address: str,
        code: str,
        ids: tuple[int, int],
        *,
        now: tuple[float, int] | None = None,
        most: tuple[float, int] | None = None,
        driver: str = "pcieport",
        iommu: str | None = None,
    ) -> str:
        """``parents``: the addresses above it, from the root, with slashes. ``now`` and ``most``: GT/s and lanes."""
        bus = (parents.partition("/")[0] or address).rpartition(":")[0]
        path = "/".join(part for part in (f"/sys/devices/pci{bus}", parents, address) if part)
        self.links[f"{PCI}/{address}"] = path
        self.put(path, **{"class": code, "vendor": f"0x{ids[0]:04x}", "device": f"0x{ids[1]:04x}", "numa_node": -1})
        for which, link in (("current", now), ("max", most)):
            if link is not None:
                self.put(path, **{f"{which}_link_speed": f"{link[0]} GT/s PCIe", f"{which}_link_width": link[1]})
        self.links[f"{path}/driver"] = f"/sys/bus/pci/drivers/{driver}"
        self.links[f"/sys/bus/pci/drivers/{driver}/module"] = f"/sys/module/{driver.replace('-', '_')}"
        if iommu is not None:
            group = f"/sys/kernel/iommu_groups/{self._groups}"
            self._groups += 1
            self.links[f"{path}/iommu_group"] = group
            self.put(group, type=iommu)
        return path

    def netdev(
        self,
        name: str,
        home: str | None,
        *,
        addresses: tuple[str, ...] = (),
        mtu: int = 1500,
        speed: int | None = None,
        up: bool = True,
        mac: str = "",
        kind: int = 1,
        wifi: bool = False,
        port: int = 0,
        gateway: str | None = None,
        metric: int = 100,
        **statistics: int,
    ) -> None:
        """``home``: the directory of its device; None for one that exists only in the kernel."""
        path = f"{home or '/sys/devices/virtual'}/net/{name}"
        self.links[f"{NET}/{name}"] = path
        if home:
            self.links[f"{path}/device"] = home
        self.put(path, type=kind, mtu=mtu, address=mac, addr_assign_type=0, flags="0x1003" if up else "0x1002")
        self.put(path, operstate="up" if up else "down", carrier_changes=2 if up else 1, dev_port=port)
        if up:
            self.put(path, carrier=1)
        else:
            self.errors[f"{path}/carrier"] = "EINVAL"
        if up and speed is not None:
            self.put(path, speed=speed, duplex="full")
        else:
            self.errors |= {f"{path}/speed": "EINVAL", f"{path}/duplex": "EINVAL"}
        if wifi:
            self.directories[f"{path}/wireless"] = []
        counters = {"rx_bytes": 0, "tx_bytes": 0, "rx_errors": 0, "tx_errors": 0, "rx_dropped": 0, **statistics}
        self.put(f"{path}/statistics", **counters)
        self._entry(name, mtu, mac, addresses)
        for text in addresses:
            self._route(name, ipaddress.ip_interface(text), metric)
        if gateway is not None:
            self._routes[0].append({"dst": "default", "gateway": gateway, "dev": name, "metric": metric, "flags": []})
        self.commands |= {
            ADDRESS: json.dumps(self._addresses),
            ROUTES[0]: json.dumps(self._routes[0]),
            ROUTES[1]: json.dumps(self._routes[1]),
        }

    def loopback(self) -> None:
        self.netdev("lo", None, addresses=("127.0.0.1/8", "::1/128"), mtu=65536, mac="00:00:00:00:00:00", kind=772)
        self.put("/sys/devices/virtual/net/lo", operstate="unknown")

    def _entry(self, name: str, mtu: int, mac: str, addresses: tuple[str, ...]) -> None:
        infos = []
        for text in addresses:
            one = ipaddress.ip_interface(text)
            scope = "host" if one.ip.is_loopback else "link" if one.ip.is_link_local and one.version == 6 else "global"
            family = "inet" if one.version == 4 else "inet6"
            infos.append({"family": family, "local": str(one.ip), "prefixlen": one.network.prefixlen, "scope": scope})
        index = len(self._addresses) + 1
        self._addresses.append({"ifindex": index, "ifname": name, "mtu": mtu, "address": mac, "addr_info": infos})

    def _route(self, name: str, one: ipaddress.IPv4Interface | ipaddress.IPv6Interface, metric: int) -> None:
        if one.ip.is_loopback:
            return
        route: dict[str, Any] = {"dst": str(one.network), "dev": name, "protocol": "kernel", "metric": metric}
        if one.version == 4:
            route["prefsrc"] = str(one.ip)
        self._routes[one.version == 6].append({**route, "flags": []})

    def thunderbolt(
        self,
        number: int,
        nhi: str,
        *,
        port: int,
        identity: str,
        device: tuple[str, str],
        peer: tuple[str, str] | None = None,
        rx: tuple[int, int] = (20, 2),
        tx: tuple[int, int] = (20, 2),
        security: str = "user",
        protected: int = 1,
    ) -> str:
        """A domain at ``nhi`` (a directory) with one socket. ``peer``: host name and unique id of the other computer.

        ``rx`` and ``tx``: Gb/s per lane, and lanes. Returns the directory of the network service.
        """
        domain = f"{nhi}/domain{number}"
        host = f"{domain}/{number}-0"
        self.links[f"{THUNDERBOLT}/domain{number}"] = domain
        self.links[f"{THUNDERBOLT}/{number}-0"] = host
        self.put(domain, security=security, iommu_dma_protection=protected, uevent="DEVTYPE=thunderbolt_domain")
        self.put(host, uevent="DEVTYPE=thunderbolt_device", authorized=1, generation=4, unique_id=identity)
        self.put(host, vendor_name=device[0], device_name=device[1])
        self.put(f"{host}/usb4_port{port}", link="usb4" if peer else "none")
        self.directories[f"{nhi}/msi_irqs"] = [str(irq) for irq in range(90, 106)]
        if peer is None:
            return ""
        name = f"{number}-{port:x}"
        xdomain = f"{host}/{name}"
        service = f"{xdomain}/{name}.0"
        self.links |= {f"{THUNDERBOLT}/{name}": xdomain, f"{THUNDERBOLT}/{name}.0": service}
        self.put(xdomain, uevent="DEVTYPE=thunderbolt_xdomain", unique_id=peer[1], vendor="0x1", device="0x1")
        self.put(xdomain, vendor_name="Linux", device_name=peer[0], maxhopid=15)
        self.put(xdomain, rx_speed=f"{rx[0]}.0 Gb/s", rx_lanes=rx[1], tx_speed=f"{tx[0]}.0 Gb/s", tx_lanes=tx[1])
        self.put(service, key="network", prtcid=1, prtcvers=1, prtcrevs=1, uevent="DEVTYPE=thunderbolt_service")
        self.links[f"{service}/driver"] = "/sys/bus/thunderbolt/drivers/thunderbolt-net"
        self.links["/sys/bus/thunderbolt/drivers/thunderbolt-net/module"] = "/sys/module/thunderbolt_net"
        self.put("/sys/module/thunderbolt_net/parameters", e2e="Y")
        return service

    def retimer(self, number: int, nhi: str, port: int, index: int) -> None:
        name = f"{number}-0:{port}.{index}"
        path = f"{nhi}/domain{number}/{number}-0/usb4_port{port}/{name}"
        self.links[f"{THUNDERBOLT}/{name}"] = path
        self.put(path, vendor="0x8087", device="0xd9c", nvm_version="8.3", uevent="DEVTYPE=thunderbolt_retimer")

    def rdma(self, name: str, home: str, *, hca: str, board: str, firmware: str) -> str:
        path = f"{home}/infiniband/{name}"
        self.links |= {f"{INFINIBAND}/{name}": path, f"{path}/device": home}
        self.put(path, node_type="1: CA", fw_ver=firmware, board_id=board, hca_type=hca)
        self._devinfo += [f"hca_id:\t{name}", f"\tfw_ver:\t{firmware}"]
        return path

    def flow_control(self, netdev: str, *, pause: str, pfc: str | None = None) -> None:
        """``pause``: on or off, both ways; ``pfc``: of each priority, where `dcb` is installed."""
        told = "".join(f"{key}\t{pause}\n" for key in ("Autonegotiate:", "RX:", "TX:"))
        self.commands[f"{PAUSE} {netdev}"] = f"Pause parameters for {netdev}:\n{told}"
        if pfc is not None:
            priorities = " ".join(f"{number}:{pfc}" for number in range(8))
            self.commands[f"{PFC} {netdev}"] = f"pfc-cap 8 macsec-bypass off delay 0 \nprio-pfc {priorities} \n"

    def rdma_port(
        self,
        path: str,
        number: int,
        *,
        state: str,
        rate: str,
        layer: str,
        lids: tuple[int, int] = (0, 0),
        gids: tuple[tuple[str, str, str], ...] = (),
        mtu: tuple[int, int] = (4096, 4096),
        **counters: int,
    ) -> None:
        """``gids``: address, type and interface; ``mtu``: active and largest; ``lids``: its own and the manager's."""
        port = f"{path}/ports/{number}"
        physical = "3: Disabled" if state == "1: DOWN" else "5: LinkUp"
        self.put(port, state=state, phys_state=physical, rate=rate, link_layer=layer)
        self.put(port, lid=f"0x{lids[0]:x}", sm_lid=f"0x{lids[1]:x}")
        self.put(f"{port}/pkeys", **{"0": "0xffff"})
        for index, (address, kind, netdev) in enumerate(gids):
            self.put(f"{port}/gids", **{str(index): ipaddress.IPv6Address(address).exploded})
            self.put(f"{port}/gid_attrs/types", **{str(index): kind})
            self.put(f"{port}/gid_attrs/ndevs", **{str(index): netdev})
        self.put(f"{port}/counters", **{"symbol_error": 0, "link_downed": 0, "port_rcv_errors": 0, **counters})
        self._devinfo += [f"\t\tport:\t{number}", f"\t\t\tmax_mtu:\t{mtu[1]} (5)", f"\t\t\tactive_mtu:\t{mtu[0]} (0)"]
        self.commands[DEVINFO] = "\n".join(self._devinfo) + "\n"

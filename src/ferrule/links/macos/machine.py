"""The computer and its system."""

from __future__ import annotations

import re

from ferrule.links.reader import Reader, software, string, tables, whole
from ferrule.links.types.firewall import Firewall
from ferrule.links.types.machine import Machine

SW_VERS = "sw_vers"
UNAME = "uname -rm"
NODE = "uname -n"
SYSCTL = "sysctl machdep.cpu.brand_string hw.memsize hw.ncpu"
HARDWARE = "system_profiler -json SPHardwareDataType"
RDMA_CTL = "rdma_ctl status"
FIREWALL = "socketfilterfw --getglobalstate"
COMMANDS = (SW_VERS, UNAME, NODE, SYSCTL, HARDWARE, RDMA_CTL, FIREWALL)


def read_machine(reader: Reader, tree: str) -> Machine:
    version = _fields(reader.output(SW_VERS, needed=True))
    kernel = (reader.output(UNAME, needed=True) or "").split()
    sysctl = _fields(reader.output(SYSCTL, needed=True))
    hardware = reader.json(HARDWARE, needed=True)
    entries = tables(hardware.get("SPHardwareDataType")) if isinstance(hardware, dict) else []
    entry = entries[0] if entries else {}
    model = string(entry.get("machine_model"))
    return Machine(
        tree=tree,
        system="macos",
        name=_line(reader.output(NODE)),
        os_name=" ".join(version[key] for key in ("ProductName", "ProductVersion") if key in version) or None,
        os_id="macos",
        os_version=version.get("ProductVersion"),
        os_build=version.get("BuildVersion"),
        kernel=kernel[0] if len(kernel) == 2 else None,
        architecture=kernel[1] if len(kernel) == 2 else None,
        vendor="Apple",
        product=" ".join(filter(None, (string(entry.get("machine_name")), model and f"({model})"))) or None,
        cpu=string(entry.get("chip_type")) or sysctl.get("machdep.cpu.brand_string"),
        cpus=whole(sysctl.get("hw.ncpu", "")),
        memory_bytes=whole(sysctl.get("hw.memsize", "")),
        rdma_ctl=_line(reader.output(RDMA_CTL)),
        software=software(reader),
    )


def read_firewalls(reader: Reader) -> tuple[Firewall, ...]:
    told = reader.output(FIREWALL)
    state = re.search(r"State = ([0-9])", told or "")
    return () if state is None else (Firewall("macos", state[1] != "0"),)


def _fields(text: str | None) -> dict[str, str]:
    """Lines ``key: value``."""
    pairs = (line.partition(":") for line in (text or "").splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon and value.strip().isprintable()}


def _line(text: str | None) -> str | None:
    line = (text or "").strip().partition("\n")[0]
    return line if line and line.isprintable() and len(line) < 256 else None

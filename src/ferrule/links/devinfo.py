"""Parser of the output of ``ibv_devinfo`` of rdma-core, and of Apple's program of that name."""

from __future__ import annotations

import re

DEVINFO = "ibv_devinfo -v"


def blocks(text: str | None) -> list[tuple[str, dict[str, str], list[dict[str, str]]]]:
    """For each device: its name, its fields, and those of its ports. GIDs are the fields ``GID0`` and so on."""
    found: list[tuple[str, dict[str, str], list[dict[str, str]]]] = []
    fields: dict[str, str] = {}
    for line in (text or "").splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            continue
        if name == "hca_id":
            fields = {}
            found.append((value, fields, []))
        elif name == "port" and found:
            fields = {"port": value}
            found[-1][2].append(fields)
        elif gid := re.fullmatch(r"GID\[ *([0-9]{1,4})\]", name):
            fields[f"GID{gid[1]}"] = value
        elif found:
            fields.setdefault(name, value)
    return found


def port_mtus(text: str | None) -> dict[tuple[str, int], tuple[int, int]]:
    """Device and port to its active and its largest MTU, in bytes."""
    found = {}
    for name, _, ports in blocks(text):
        for port in ports:
            number, active, largest = (leading(port.get(key)) for key in ("port", "active_mtu", "max_mtu"))
            if number is not None and active is not None and largest is not None:
                found[name, number] = active, largest
    return found


def leading(text: str | None) -> int | None:
    """The number that ``4096 (5)`` begins with."""
    match = re.match(r"[0-9]{1,9}\b", text or "", re.ASCII)
    return int(match[0]) if match else None

"""All checks, put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ferrule.links.doctor import (
    between,
    connectivity,
    devices,
    drivers,
    firewall,
    mac,
    machine,
    netdev,
    pcie,
    rdma,
    thunderbolt,
    unreadable,
)
from ferrule.links.doctor.cures import family
from ferrule.links.findings import SEVERITIES, Finding, worst
from ferrule.links.types.inventory import Inventory

SCHEMA = 1
_CHECKS = (
    thunderbolt.check,
    mac.check,
    netdev.check,
    connectivity.check,
    rdma.check,
    pcie.check,
    machine.check,
    drivers.check,
    devices.check,
    firewall.check,
    unreadable.check,
)


def diagnose(inventories: Sequence[Inventory]) -> tuple[Finding, ...]:
    """Diagnosis: what is wrong, or worth knowing, on these hosts and between them; the worst first. Pure."""
    found = [
        dataclasses.replace(finding, hosts=(one.host,))
        for one in inventories
        for check in _CHECKS
        for finding in check(one)
    ]
    if len(inventories) > 1:
        found = between.merged([*found, *between.check(inventories)], inventories)
    found = list(dict.fromkeys(found))
    return tuple(sorted(found, key=lambda one: -SEVERITIES.index(one.severity)))


def diagnosis_json(inventories: Sequence[Inventory], findings: Sequence[Finding]) -> dict[str, object]:
    """For other programs; docs/doctor.md tells the fields."""
    hosts = [
        {
            "name": one.host,
            "source": one.machine.tree,
            "system": one.machine.system,
            "family": family(one.machine),
            "os": one.machine.os_name,
            "kernel": one.machine.kernel,
        }
        for one in inventories
    ]
    return {
        "schema": SCHEMA,
        "worst": worst(tuple(findings)),
        "hosts": hosts,
        "findings": [finding_json(one) for one in findings],
    }


def finding_json(one: Finding) -> dict[str, object]:
    """One finding in it."""
    return {
        **dataclasses.asdict(one),
        "evidence": [{"where": where, "line": line} for where, line in one.evidence],
    }

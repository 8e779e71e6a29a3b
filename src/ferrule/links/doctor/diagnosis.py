"""All checks, put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

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
from ferrule.links.findings import SEVERITIES, Cure, Finding, Severity, worst
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


class EvidenceJson(msgspec.Struct, frozen=True):
    where: str
    line: str


class FindingJson(msgspec.Struct, frozen=True):
    """Fields of `Finding`."""

    id: str
    severity: Severity
    subject: str
    what: str
    evidence: tuple[EvidenceJson, ...]
    why: str
    cure: tuple[Cure, ...]
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, one: Finding) -> FindingJson:
        evidence = tuple(EvidenceJson(where, line) for where, line in one.evidence)
        return cls(one.id, one.severity, one.subject, one.what, evidence, one.why, one.cure, one.hosts)


class HostJson(msgspec.Struct, frozen=True):
    """A host that was looked at."""

    name: str
    source: str
    system: str
    family: str
    os: str | None
    kernel: str | None


class UnreachedJson(msgspec.Struct, frozen=True):
    """A host that was not."""

    host: str
    error: str


class DiagnosisJson(msgspec.Struct, frozen=True):
    """A diagnosis for other programs; docs/doctor.md tells the fields."""

    schema: int
    worst: Severity
    hosts: tuple[HostJson, ...]
    findings: tuple[FindingJson, ...]
    unreached: tuple[UnreachedJson, ...] = ()


def diagnosis_json(
    inventories: Sequence[Inventory], findings: Sequence[Finding], unreached: Sequence[UnreachedJson] = ()
) -> DiagnosisJson:
    hosts = tuple(
        HostJson(
            name=one.host,
            source=one.machine.tree,
            system=one.machine.system,
            family=family(one.machine),
            os=one.machine.os_name,
            kernel=one.machine.kernel,
        )
        for one in inventories
    )
    found = tuple(map(FindingJson.of, findings))
    return DiagnosisJson(SCHEMA, worst(tuple(findings)), hosts, found, tuple(unreached))

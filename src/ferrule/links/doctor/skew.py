"""Hosts that do not have the same versions: of Ferrule and what it runs on, of the system, of cards' firmware."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ferrule.links.doctor.cures import by_hand, upgrade
from ferrule.links.findings import Cure, Finding, Severity
from ferrule.links.own import VERSIONS
from ferrule.links.reader import natural
from ferrule.links.types.inventory import Evidence, Inventory

_KERNEL = "/proc/sys/kernel/osrelease"
_PACKAGES = {"debian": "full-upgrade", "fedora": "kernel", "arch": "linux"}


@dataclass(frozen=True)
class Told:
    """Version that one host told, and where; ``same``: the part of it that has to be the same."""

    host: str
    version: str
    same: str
    where: str


@dataclass(frozen=True)
class Program:
    """One of which ranks on all hosts should have the same version. ``part``: of it, what has to be the same."""

    finding: str
    severity: Severity
    name: str
    title: str
    why: str
    part: Callable[[str], str]


def _public(version: str) -> str:
    """Without ``+cu128`` or ``+rocm6.4``: hosts with different GPUs need different builds of one version."""
    return version.partition("+")[0]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


_PROGRAMS = (
    Program(
        *("ferrule-skew", "warning", "ferrule", "Ferrule"),
        "Ranks of different versions may refuse each other when a model starts, and `ferrule links probe` always does.",
        str,
    ),
    Program(
        *("python-skew", "note", "python", "Python"),
        "Ray refuses hosts with another minor version, and what one host pickles another may not read.",
        _minor,
    ),
    Program(
        *("torch-skew", "warning", "torch", "torch"),
        "Ranks of one model then compute with different kernels: results differ between them, and may drift apart; "
        "checkpoints and collectives of one may be unknown to the other.",
        _public,
    ),
    Program(
        *("torch-skew", "warning", "transformers", "transformers"),
        "How a model is split comes from transformers, so ranks may split it differently, or one may not know it.",
        str,
    ),
    Program(
        *("ray-skew", "error", "ray", "Ray"),
        "Ray lets no host into a cluster that was started with another version.",
        str,
    ),
)


def check(inventories: Sequence[Inventory]) -> Iterator[Finding]:
    for program in _PROGRAMS:
        yield from _program(inventories, program)
    macs = [one for one in inventories if one.machine.system == "macos"]
    yield from _skew(
        *("macos-skew", "warning", "macOS", _told(macs, lambda one: one.machine.os_build, "$ sw_vers")),
        "RDMA between different builds of macOS is known to fail.",
        by_hand("Update the older ones: System Settings, General, Software Update. Or: sudo softwareupdate -ia"),
    )
    yield from _kernels(inventories)
    yield from _firmware(inventories)


def _program(inventories: Sequence[Inventory], program: Program) -> Iterator[Finding]:
    """Hosts that do not have it at all are left out: not all do everything."""
    told = [
        Told(one.host, version, program.part(version), f"$ {VERSIONS} ({one.host})")
        for one in inventories
        if (version := one.machine.version(program.name)) is not None
    ]
    if not told:
        return
    newest = max(told, key=lambda one: natural(one.same))
    older = [one for one in told if one.same != newest.same]
    cure = by_hand("Install the same on all hosts.")
    if program.name == "python":
        made = (f"python{newest.same} -m venv ~/.ferrule-venv",)
        text = "Make an environment of the newer Python and install Ferrule into it"
        cure = tuple(Cure("any", f"{text}; on {one.host}:", made) for one in older)
    elif program.name == "ferrule":
        cure = by_hand(
            f"Install Ferrule {newest.version} on {', '.join(one.host for one in older)}, as on {newest.host}."
        )
    elif re.match(r"[1-9]|0\.", newest.version):
        wanted = f"pip install '{program.name}=={_public(newest.version)}'"
        text = "in the environment that Ferrule runs in (`ferrule version` tells which):"
        cure = tuple(Cure("any", f"On {one.host}, {text}", (wanted,)) for one in older)
    yield from _skew(program.finding, program.severity, program.title, told, program.why, cure)


def _kernels(inventories: Sequence[Inventory]) -> Iterator[Finding]:
    """It matters where the kernel drives the cable at both ends: USB4 and RDMA, not plain Ethernet."""
    linux = [one for one in inventories if one.machine.system == "linux" and (one.thunderbolt or one.rdma)]
    told = _told(linux, lambda one: one.machine.kernel, _KERNEL)
    why = "It mostly works. If a cable behaves differently at its two ends, this is the first suspect."
    text = "Update the older ones, so that all are the same, and restart them."
    yield from _skew("kernel-skew", "note", "Linux", told, why, upgrade(text, _PACKAGES))


def _firmware(inventories: Sequence[Inventory]) -> Iterator[Finding]:
    boards: dict[str, list[Told]] = collections.defaultdict(list)
    for one in inventories:
        for device in one.rdma:
            if device.board and device.firmware and not device.software:
                host = one.host
                boards[device.board].append(
                    Told(host, device.firmware, device.firmware, f"{device.path}/fw_ver ({host})")
                )
    for board, told in boards.items():
        why = "It mostly works. Speed and recovery from errors may differ."
        cure = by_hand("Update the older ones, so that all are the same: fwupdmgr update, or the maker's own program.")
        yield from _skew("firmware-skew", "note", f"the firmware of {board}", told, why, cure)


def _told(inventories: Sequence[Inventory], ask: Callable[[Inventory], str | None], where: str) -> list[Told]:
    found = ((one.host, ask(one)) for one in inventories)
    return [Told(host, version, version, f"{where} ({host})") for host, version in found if version is not None]


def _skew(
    finding: str, severity: Severity, of: str, told: Sequence[Told], why: str, cure: tuple[Cure, ...]
) -> Iterator[Finding]:
    if len({one.same for one in told}) < 2:
        return
    listed = ", ".join(f"{one.host} {one.version}" for one in told)
    what = f"The hosts do not have the same version of {of}: {listed}."
    evidence: tuple[Evidence, ...] = tuple((one.where, one.version) for one in told)
    hosts = tuple(dict.fromkeys(one.host for one in told))
    yield Finding(finding, severity, of, what, evidence, why, cure, hosts)

"""Find out what a machine has for the driver, and of it. Changes nothing; sees a little more as root."""

from __future__ import annotations

import os
import re

from ferrule.kmod.machine import output
from ferrule.kmod.record import read_record
from ferrule.kmod.source import MODULE, PACKAGE
from ferrule.kmod.state import Built, Signing, State, Trust
from ferrule.links import Inventory
from ferrule.links.doctor.cures import family
from ferrule.links.doctor.fix import Target

PROGRAMS = ("dkms", "make", "gcc", "modprobe", "mokutil", "openssl")
_PLACES = ("usr/sbin", "usr/bin", "sbin", "bin", "usr/local/sbin", "usr/local/bin")
_LIBRARIES = ("usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
_CERTIFICATE = "/var/lib/dkms/mok.pub"
_KEY = "/var/lib/dkms/mok.key"
_UBUNTU = "/var/lib/shim-signed/mok/MOK"


def look(target: Target, inventory: Inventory, *, root: bool | None = None) -> State:
    """``inventory``: of the same machine. ``root``: default, whether this process is. Raises `DriverError` if the
    record of what was installed cannot be read."""
    kernel = inventory.machine.kernel or ""
    programs = frozenset(name for name in PROGRAMS if any(target.at(f"{place}/{name}").exists() for place in _PLACES))
    loaded, users = _loaded(target)
    told = output(target, "dkms", "--version") if "dkms" in programs else None
    dkms = re.search(r"[0-9][\w.]*", told or "")
    return State(
        inventory=inventory,
        root=os.geteuid() == 0 if root is None else root,
        programs=programs,
        headers=target.at(f"/lib/modules/{kernel}/build/Makefile").exists(),
        kernel_package=(target.read(f"/lib/modules/{kernel}/pkgbase") or "").strip(),
        dkms=dkms[0] if dkms else "",
        built=parse_dkms(output(target, "dkms", "status", "-m", PACKAGE) or "") if dkms else (),
        loaded=loaded,
        users=users,
        on_disk=_modinfo(target, kernel, "version"),
        signer=_modinfo(target, kernel, "signer") or "",
        signing=_signing(target, inventory, programs),
        package=_package(target, inventory),
        provider=_provider(target),
        record=read_record(target),
    )


def parse_dkms(text: str) -> tuple[Built, ...]:
    """Lines such as ``ferrule-rdma/0.1.0.a1b2, 6.12.1-amd64, x86_64: installed``; once ``ferrule-rdma, 0.1…``."""
    found = []
    for line in text.splitlines():
        match = re.match(rf"{PACKAGE}(?:/|, )([^,:\s]+)(?:, ([^,\s]+), \S+)?: (\w+)", line.strip())
        if match:
            found.append(Built(match[1], match[2] or "", match[3]))
    return tuple(found)


def _loaded(target: Target) -> tuple[str | None, int]:
    folder = f"/sys/module/{MODULE}"
    if not target.at(folder).is_dir():
        return None, 0
    count = (target.read(f"{folder}/refcnt") or "0").strip()
    return (target.read(f"{folder}/version") or "").strip(), int(count) if count.isdecimal() else 0


def _modinfo(target: Target, kernel: str, field: str) -> str | None:
    return output(target, "modinfo", "-k", kernel, "-F", field, MODULE)


def _signing(target: Target, inventory: Inventory, programs: frozenset[str]) -> Signing:
    machine = inventory.machine
    enforced = (target.read("/sys/module/module/parameters/sig_enforce") or "").strip()
    locked = machine.lockdown
    if enforced == "Y" or (locked is not None and locked != "none"):
        required = True
    else:  # kernels without lockdown take any module also with Secure Boot
        required = machine.secure_boot is True and not (enforced and locked)
    certificate, key = _mok(target, inventory)
    there = target.at(certificate).exists()
    trust: Trust = "unknown"
    if there and "mokutil" in programs:
        trust = parse_mokutil(output(target, "mokutil", "--test-key", certificate, failed=True) or "")
    return Signing(required, machine.secure_boot, certificate, key, there, trust)


def parse_mokutil(text: str) -> Trust:
    """Answer of ``mokutil --test-key``; its exit code tells nothing that is the same in all versions."""
    if "already enrolled" in text or "already in the built-in trusted keyring" in text:
        return "trusted"
    if "enrollment request" in text:
        return "pending"
    return "untrusted" if "is not enrolled" in text else "unknown"


def _mok(target: Target, inventory: Inventory) -> tuple[str, str]:
    """Certificate and key with which DKMS signs: as it is configured, else where the distribution has them."""
    found: dict[str, str] = {}
    folder = target.at("/etc/dkms/framework.conf.d")
    texts = [target.read("/etc/dkms/framework.conf") or ""]
    texts += [path.read_text(errors="replace") for path in sorted(folder.glob("*.conf"))] if folder.is_dir() else []
    for text in texts:
        found |= dict(re.findall(r'^(mok_certificate|mok_signing_key)="?([^"\s$]+)"?', text, re.MULTILINE))
    ubuntu = inventory.machine.os_id == "ubuntu" or "ubuntu" in inventory.machine.os_like
    certificate, key = (f"{_UBUNTU}.der", f"{_UBUNTU}.priv") if ubuntu else (_CERTIFICATE, _KEY)
    return found.get("mok_certificate", certificate), found.get("mok_signing_key", key)


def _package(target: Target, inventory: Inventory) -> str:
    if family(inventory.machine) != "debian":
        return ""
    told = (
        output(target, "dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", f"{PACKAGE}-dkms") or ""
    )
    status, _, version = told.partition(" ")
    return version if status == "installed" else ""


def _provider(target: Target) -> str:
    """The library by which libibverbs speaks the queues of our devices (docs/driver.md)."""
    for place in _LIBRARIES:
        for path in sorted(target.at(f"{place}/libibverbs").glob("librxe-rdmav*.so")):
            return f"/{path.relative_to(target.root)}"
    return ""

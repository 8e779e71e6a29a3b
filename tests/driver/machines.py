"""A machine that is not there: DKMS and the kernel's modules as far as installing the driver sees them."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ferrule.kmod import PACKAGE, Source
from ferrule.links import Inventory, Machine, ThunderboltDomain
from ferrule.links.doctor.fix import Target
from ferrule.links.types.machine import Module

KERNEL = "6.12.48-amd64"
INVENTORY = Inventory(
    Machine("live", "linux", os_id="debian", kernel=KERNEL, modules=(Module("thunderbolt"),), secure_boot=False),
    thunderbolt=(ThunderboltDomain("domain0", "/sys/bus/thunderbolt/devices/domain0"),),
)
SOURCE = Source({"Makefile": b"obj-m := ferrule_rdma.o\n", "main.c": b"/* one */\n"})
NEWER = Source({"Makefile": b"obj-m := ferrule_rdma.o\n", "main.c": b"/* two */\n"})


class Killed(BaseException):
    """As by a power cut: from then on nothing runs."""


@dataclass
class FakeMachine:
    """``fail_at``: the number of the changing command that fails; ``kill_at``: at which the process ends, half way."""

    root: Path
    fail_at: int = -1
    kill_at: int = -1
    known: dict[str, set[str]] = field(default_factory=dict)
    """By version: its states for our kernel, such as ``{"built", "installed"}``."""
    asked: list[str] = field(default_factory=list)
    signer: str = ""
    mokutil: str = ""

    def __post_init__(self) -> None:
        for path in (*(f"usr/sbin/{name}" for name in ("dkms", "modprobe", "make", "gcc")), "run/x", "etc/x"):
            self.place(path)
        self.place(f"lib/modules/{KERNEL}/build/Makefile")
        self.place("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so")

    @property
    def target(self) -> Target:
        return Target(self.root, self)

    @property
    def loaded(self) -> str | None:
        path = self.root / "sys/module/ferrule_rdma/version"
        return path.read_text().strip() if path.exists() else None

    @property
    def installed(self) -> list[str]:
        return [version for version, states in self.known.items() if "installed" in states]

    def place(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def files(self) -> set[str]:
        """All that an installation may leave."""
        places = (self.root / "etc", self.root / "usr/src", self.root / "var/lib/ferrule")
        return {str(path.relative_to(self.root)) for place in places for path in place.rglob("*") if path.is_file()}

    def __call__(self, argv: Sequence[str]) -> tuple[int, str]:
        match list(argv):
            case ["dkms", "--version"]:
                return 0, "dkms-3.0.10"
            case ["dkms", "status", *_]:
                return 0, "\n".join(self._status())
            case ["modinfo", "-k", _, "-F", what, _]:
                found = {"version": "".join(self.installed), "signer": self.signer, "sig_id": self.signer and "PKCS#7"}
                return (0, found[what]) if self.installed else (1, "not found")
            case ["mokutil", *_]:
                return 1, self.mokutil
            case ["dpkg-query", *_]:
                return 1, "no packages found"
        self.asked.append(shlex.join(argv))
        number = len(self.asked) - 1
        if number == self.fail_at:
            return 1, "it does not want to"
        if number >= self.kill_at >= 0:
            if number == self.kill_at:
                self._change(list(argv))
            raise Killed
        return self._change(list(argv))

    def _status(self) -> list[str]:
        lines = []
        for version, states in self.known.items():
            for state in ("installed", "built", "added"):
                if state in states:
                    kernel = "" if state == "added" else f", {KERNEL}, x86_64"
                    lines.append(f"{PACKAGE}/{version}{kernel}: {state}")
                    break
        return lines

    def _change(self, argv: list[str]) -> tuple[int, str]:
        version = argv[5] if argv[0] == "dkms" else ""
        states = self.known.get(version)
        match argv:
            case ["dkms", "add", *_]:
                if states is not None or not (self.root / f"usr/src/{PACKAGE}-{version}/dkms.conf").exists():
                    return 3, "already added, or no source"
                self.known[version] = {"added"}
            case ["dkms", _, *_] if states is None:
                return 3, f"the module {version} is not in the DKMS tree"
            case ["dkms", "build", *_]:
                if "built" in states:
                    return 3, "it is built already"
                states |= {"built"}
            case ["dkms", "install", *_]:
                if self.installed and version not in self.installed:
                    return 6, "another version is installed"
                states |= {"built", "installed"}
            case ["dkms", "uninstall", *_]:
                states -= {"installed"}
            case ["dkms", "remove", *_]:
                del self.known[version]
            case ["modprobe", "-r", _]:
                shutil.rmtree(self.root / "sys/module/ferrule_rdma")
            case ["modprobe", _]:
                if not self.installed:
                    return 1, "FATAL: Module ferrule_rdma not found"
                self.place("sys/module/ferrule_rdma/version", f"{self.installed[0]}\n")
        return 0, ""

"""A guest's description, its image, and its result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from ferrule.errors import ConfigError, GuestError, LabError
from ferrule.lab.vm.image import python
from ferrule.lab.vm.image.image import Image
from ferrule.lab.vm.image.tree import Tree
from ferrule.lab.vm.kernel.kernel import Kernel

_INIT = Path(__file__).with_name("init.sh")
_KERNEL_LOG = Path(__file__).with_name("kernel_log.sh")
_DISK_INIT = Path(__file__).with_name("disk_init.sh")
_NEEDED_MODULES = ("virtio_pci", "virtio_console")
_TAIL_LINES = 30
_DISK_MODULES = ("virtio_blk", "ext4")
_AT_HAND = (
    "dummy",
    "veth",
    "bridge",
    "tun",
    "sch_netem",
    "sch_tbf",
    "crc32c_generic",
    "crc32c_intel",
    "crc32_generic",
    "crc32_pclmul",
)
"""Modules that `ip`, `tc` and others load by themselves when they are asked for what these do."""

_ETC = {
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "passwd": "root:x:0:0:root:/root:/bin/bash\n",
    "group": "root:x:0:\n",
}


@dataclass(frozen=True)
class Guest:
    """A virtual machine that runs one script and powers off; with ``sessions`` it stays up after it and takes commands.

    ``script``: bash, or any program's text behind a ``#!`` line; it runs as root in /root, its output goes to the
    console, and what it leaves in /results comes back. ``modules``: loaded before it, in this order; a name is one of
    the kernel's or of `ferrule.lab.vm.kernel.module.FROM_SOURCE`, a path a module built for this kernel. ``python``:
    import names of packages that the guest's Python has; none: no Python. ``files``: text, bytes or a host file or
    directory by guest path; programs bring their shared libraries. ``env``: for the script. ``cpus``, ``memory_mb``:
    its size. ``name``: its own. ``sessions``: how many commands it runs at a time; ``terminals``: consoles for shells
    (hvc0...).
    ``controllers``: sockets of PCI devices that another process serves, such as those of `ferrule.lab.usb4`.
    ``exact_time``: its clock counts its instructions, so that what it measures is the same whatever else the host does;
    with one processor, about half as fast, and not for guests that wait for others.
    ``disk``: an image with an ext4 file system of a whole system, which starts as on any machine, with its own modules
    and programs, and keeps what changes in it. The script runs when it is up; what is in /lab is in /run/lab then, and
    what it leaves in /run/results comes back.
    """

    script: str
    modules: Sequence[str | Path] = ()
    python: Sequence[str] = ()
    files: Mapping[str, str | bytes | Path] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: int = 2
    memory_mb: int = 2048
    name: str = "guest"
    sessions: int = 0
    terminals: int = 0
    controllers: Sequence[Path] = ()
    exact_time: bool = False
    disk: Path | None = None

    def __post_init__(self) -> None:
        if self.exact_time and self.cpus != 1:
            raise ConfigError(f"exact time is that of one processor: give the guest cpus=1, not {self.cpus}")
        if self.exact_time and self.controllers:
            raise ConfigError(
                "exact time is that of one guest: what comes over a cable comes at another guest's time; "
                "use the mock core, which has both hosts in one guest (docs/virtual-usb4.md)"
            )
        if self.disk is not None and (self.sessions or self.terminals):
            raise ConfigError("a guest with a system on a disk runs one script; it has no sessions and terminals")

    @property
    def session_numbers(self) -> range:
        """Of its sessions; 0 is the lab's own."""
        return range(self.sessions + 1) if self.sessions else range(0)

    @property
    def streams(self) -> list[str]:
        """Names of the ports of its sessions, by which guest and host talk."""
        return [f"{kind}{number}" for number in self.session_numbers for kind in ("session", "errors")]


@dataclass(frozen=True)
class Result:
    """Result of a guest that has ended. ``exit_code``: its script's; ``files``: what was in /results, by relative path;
    ``seconds`` from power-on to power-off."""

    exit_code: int
    console: str
    files: Mapping[str, bytes]
    seconds: float

    def check(self) -> Self:
        """This result, or a `GuestError` with the console's last lines if the script failed."""
        if self.exit_code != 0:
            raise GuestError(
                f"the guest's script ended with status {self.exit_code}; the last lines of its console:\n"
                f"{tail(self.console)}",
                console=self.console,
            )
        return self


def tail(console: str) -> str:
    """The last lines of what a guest said."""
    return "\n".join(console.splitlines()[-_TAIL_LINES:]) or "(nothing)"


def write_image(guest: Guest, out: BinaryIO, tree: Tree, kernel: Kernel, own: Mapping[str, Path]) -> None:
    """Write the image with what ``guest`` asks for to ``out``; ``own``: files of modules that are not the kernel's."""
    image = Image(out, tree)
    image.file("/init", _INIT.read_bytes(), mode=0o755)
    image.file("/usr/bin/lab-kernel-log", _KERNEL_LOG.read_bytes(), mode=0o755)
    script = guest.script if guest.script.startswith("#!") else f"#!/bin/bash\n{guest.script}"
    image.file("/lab/script", script.encode(), mode=0o755)
    needed = _NEEDED_MODULES if guest.disk is None else (*_NEEDED_MODULES, *_DISK_MODULES)
    order = [*needed, *(name.stem if isinstance(name, Path) else name for name in guest.modules)]
    image.file("/lab/modules", "".join(f"{name}\n" for name in order).encode())
    environment = dict(guest.env)
    if guest.python:
        environment.setdefault("PYTHONPATH", python.PACKAGES)
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    image.file("/lab/environment", "".join(lines).encode())
    image.file("/lab/sessions", f"{guest.sessions and guest.sessions + 1}\n".encode())
    if guest.disk is not None:
        image.file("/lab/disk_init", _DISK_INIT.read_bytes(), mode=0o755)
    for path, content in guest.files.items():
        _add(image, path, content)
    hosts = f"127.0.0.1 localhost {guest.name}\n::1 localhost\n"
    for name, text in (_ETC | {"hosts": hosts, "hostname": f"{guest.name}\n"}).items():
        image.file(f"/etc/{name}", text.encode())
    image.add_tree()
    if guest.python:
        image.add_files(python.standard_library())
        for name in ("python3", "python"):
            image.symlink(f"/usr/local/bin/{name}", str(python.interpreter()))
        image.add_files(python.packages(guest.python))
    at_hand = [name for name in _AT_HAND if kernel.has_module(name)]
    named = [name for name in guest.modules if isinstance(name, str)]
    image.add_modules(kernel, [*needed, *at_hand, *named], own)
    image.close()


def _add(image: Image, path: str, content: str | bytes | Path) -> None:
    if isinstance(content, Path):
        if not content.exists():
            raise LabError(f"the guest's file {path} should come from {content}, which does not exist")
        if content.is_dir():
            files = sorted(file for file in content.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
            image.add_files((f"{path}/{file.relative_to(content)}", file) for file in files)
        else:
            image.add_files([(path, content)])
    else:
        data = content.encode() if isinstance(content, str) else content
        image.file(path, data, mode=0o755 if data.startswith(b"#!") else 0o644)

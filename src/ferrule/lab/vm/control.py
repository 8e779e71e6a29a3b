"""Labs of virtual machines that stay up: start them, ask them, end them, and run commands in their guests."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferrule.errors import ConfigError, LabError
from ferrule.hardware import find_lab, shipped
from ferrule.lab.daemon import client, registry
from ferrule.lab.vm.daemon import DONE, LEND_SECONDS, REBOOT_SECONDS
from ferrule.lab.vm.machine.session import Session
from ferrule.lab.vm.options import VmOptions
from ferrule.lab.vm.wiring import wire

KIND = "vms"
_UP_SECONDS = 120.0
_MARGIN_SECONDS = 10.0


def up(name_or_file: str, options: VmOptions, *, name: str | None = None) -> dict[str, Any]:
    """Start a lab that stays until `down`; returns its status. Its guests go on booting.

    Raises `ConfigError` for a wrong profile or a name that is taken, `LabError` where there can be no lab.
    """
    profile = find_lab(name_or_file)
    wire(profile)
    title = registry.check_name(name or profile.name)
    wanted = name_or_file if name_or_file in shipped().labs else str(Path(name_or_file).resolve())

    def command(folder: Path) -> list[str]:
        return [sys.executable, "-m", "ferrule.lab.vm.daemon", str(folder), wanted, options.to_json()]

    client.up(KIND, title, command, _UP_SECONDS, "ferrule lab vm down")
    status: dict[str, Any] = ask(title, "status")
    return status


def down(names: Sequence[str] = ()) -> list[str]:
    """End these labs, or all; returns the names of those that ended."""
    return client.down(KIND, names, _UP_SECONDS)


def labs() -> list[dict[str, Any]]:
    """The status of every lab that is up."""
    with registry.alone(KIND) as folder:
        registry.reap(folder)
        names = sorted(lab.name for lab in folder.iterdir() if lab.is_dir())
    return [ask(name, "status") for name in names]


def is_up(name: str) -> bool:
    return registry.held(registry.folder(KIND) / name)


def ask(name: str, request: str, *, seconds: float = client.ASK_SECONDS, **arguments: Any) -> Any:
    """Ask the process that holds a lab. Raises `ConfigError` or `LabError` with what it answers."""
    if not is_up(name):
        raise ConfigError(f"the lab {name!r} is not up; start it: ferrule lab vm up {name}")
    return client.ask(registry.folder(KIND) / name, request, seconds=seconds, **arguments)


def reboot(name: str, host: str) -> None:
    """Cut a host's power, and boot it again; it goes on booting."""
    ask(name, "reboot", seconds=REBOOT_SECONDS + _MARGIN_SECONDS, host=host)


@dataclass(frozen=True)
class Borrowed:
    """A guest's session, and a terminal of it if one was asked for: hvc ``number``."""

    session: Session
    terminal: socket.socket | None
    number: int | None


@contextmanager
def borrow(name: str, host: str, *, terminal: bool = False) -> Iterator[Borrowed]:
    """A session of a guest of a lab that is up. A command that still runs in it when the block ends is killed.

    Raises `ConfigError` for a host that is not there, `LabError` where all of its sessions or terminals are in use.
    """
    with ExitStack() as open_ends:
        connection = open_ends.enter_context(client.connect(registry.folder(KIND) / name))
        request = {"do": "lend", "host": host, "terminal": terminal}
        connection.settimeout(LEND_SECONDS + _MARGIN_SECONDS)
        connection.sendall(json.dumps(request).encode() + b"\n")
        said, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        ends = [open_ends.enter_context(socket.socket(fileno=descriptor)) for descriptor in descriptors]
        if not said:
            raise LabError(f"the lab {name!r} does not answer; end it: ferrule lab vm down {name}")
        number = client.unwrap(json.loads(said))["terminal"]
        session = Session(*ends[:2])
        yield Borrowed(session, ends[2] if terminal else None, number)
        if not session.busy:
            connection.sendall(DONE)

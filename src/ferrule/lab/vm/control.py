"""Labs of virtual machines that stay up: start them, ask them, end them, and run commands in their guests."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ferrule.errors import ConfigError, LabError
from ferrule.hardware import find_lab
from ferrule.lab.daemon import client, messages, registry
from ferrule.lab.daemon.messages import Console, Fault, Lend, Lent, Reboot, Request, Status
from ferrule.lab.usb4.messages import CableState
from ferrule.lab.vm.daemon import DONE, LEND_SECONDS, REBOOT_SECONDS
from ferrule.lab.vm.machine.session import Session
from ferrule.lab.vm.options import VmOptions
from ferrule.lab.vm.status import VmStatus
from ferrule.lab.vm.wiring import wire

KIND = "vms"
_UP_SECONDS = 120.0
_MARGIN_SECONDS = 10.0
_T = TypeVar("_T")


def up(name_or_file: str, options: VmOptions, *, name: str | None = None) -> VmStatus:
    """Start a lab that stays until `down`. Its guests go on booting.

    Raises `ConfigError` for a wrong profile or a name that is taken, `LabError` where there can be no lab.
    """
    profile = find_lab(name_or_file)
    wire(profile)
    program = [sys.executable, "-m", "ferrule.lab.vm.daemon"]
    end, seconds = "ferrule lab vm down", _UP_SECONDS
    return status(
        client.up(
            KIND,
            profile,
            name_or_file,
            name,
            program,
            msgspec.json.encode(options).decode(),
            seconds=seconds,
            down=end,
        )
    )


def down(names: Sequence[str] = ()) -> list[str]:
    """End these labs, or all; returns the names of those that ended."""
    return client.down(KIND, names, _UP_SECONDS)


def labs() -> list[VmStatus]:
    """Every lab that is up."""
    return [status(lab.name) for lab in client.present(KIND)[0]]


def is_up(name: str) -> bool:
    return registry.held(registry.folder(KIND) / name)


def status(name: str) -> VmStatus:
    """Of a lab that is up. This and what follows raise `ConfigError` where it is not, `LabError` without an answer."""
    return _ask(name, Status(), VmStatus)


def fault(name: str, cable: str, arguments: Sequence[str], sender: str | None = None) -> CableState:
    """Let something happen to a cable, see `ferrule.lab.vm.faults`; how it is then."""
    return _ask(name, Fault(cable, tuple(arguments), sender), CableState)


def console(name: str, host: str) -> str:
    """Output of a host's serial console."""
    return _ask(name, Console(host), str)


def reboot(name: str, host: str) -> None:
    """Cut a host's power, and boot it again; it goes on booting."""
    _ask(name, Reboot(host), type(None), seconds=REBOOT_SECONDS + _MARGIN_SECONDS)


def _ask(name: str, request: Request, kind: type[_T], *, seconds: float = client.ASK_SECONDS) -> _T:
    if not is_up(name):
        raise ConfigError(f"the lab {name!r} is not up; start it: ferrule lab vm up {name}")
    return client.ask(registry.folder(KIND) / name, request, kind, seconds=seconds)


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
        control = registry.folder(KIND) / name / registry.CONTROL
        connection = open_ends.enter_context(messages.connect(control, LEND_SECONDS + _MARGIN_SECONDS))
        messages.send(connection, Lend(host, terminal))
        said, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        ends = [open_ends.enter_context(socket.socket(fileno=descriptor)) for descriptor in descriptors]
        if not said:
            raise LabError(f"the lab {name!r} does not answer; end it: ferrule lab vm down {name}")
        number = messages.take(said, Lent).terminal
        session = Session(*ends[:2])
        yield Borrowed(session, ends[2] if terminal else None, number)
        if not session.busy:
            connection.sendall(DONE)

"""Places where ranks can run: each place says how its supervisor is started, and why that went wrong."""

from __future__ import annotations

import ipaddress
import shlex
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, ClassVar, Protocol

from ferrule.errors import ClusterError
from ferrule.launch.hostfile import HostEntry
from ferrule.process import last_line, signal_group

SUPERVISOR = ("-P", "-m", "ferrule.launch.supervisor")
_NOT_FOUND = 127
_SSH_FAILED = 255


class Carrier(Protocol):
    """The three streams between a launcher and a supervisor, and how it ended, as `Popen` has them."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        ...

    def cut(self) -> None:
        """End it at once."""
        ...


class _Program(subprocess.Popen[bytes]):
    """A program that leads a group of its own: Ctrl-C is for the launcher, which passes it on."""

    def __init__(self, command: Sequence[str]) -> None:
        # Not `process.start`: its streams must be raw, and a supervisor is not tied, as it has to end its ranks itself.
        pipe = subprocess.PIPE
        super().__init__(command, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0, bufsize=0)

    def cut(self) -> None:
        signal_group(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Place(ABC):
    """A host of a job. ``distant``: the connection to it can break without a sign."""

    entry: HostEntry
    distant: ClassVar[bool] = True

    @abstractmethod
    def command(self) -> list[str]:
        """The program of this machine that carries the streams of a supervisor there. Raises `FerruleError`."""

    def open(self) -> Carrier:
        """Start a supervisor there. Raises `FerruleError` and `OSError`."""
        return _Program(self.command())

    def describe(self) -> str:
        """Description of how a supervisor is started there."""
        return shlex.join(self.command())

    def why(self, code: int, told: str) -> str:
        """Reason why the carrier ended with ``code`` after it had printed ``told``, and the cure."""
        return f"no supervisor on {self.entry.name}: {last_line(told) or f'it ended with code {code}'}"


@dataclass(frozen=True)
class LocalPlace(Place):
    """This machine."""

    distant = False

    def command(self) -> list[str]:
        return [self.entry.python or sys.executable, *SUPERVISOR]

    def why(self, code: int, told: str) -> str:
        return _why(self.entry, code, told)


@dataclass(frozen=True)
class SshPlace(Place):
    """Another machine. ``program``: how to call ssh; ``seconds``: how long to try to connect."""

    program: Sequence[str] = ("ssh",)
    seconds: int = 10

    def command(self) -> list[str]:
        from ferrule.links.remote import ssh_command  # a job on one machine need not wait for it

        command = " ".join(["exec", _quoted(self.entry.python or sys.executable), *SUPERVISOR])
        # A cable that was pulled is noticed after 15 s; by the fabric's ranks, within one.
        options = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
        return ssh_command(self.entry.name, command, self.seconds, program=self.program, options=options)

    def why(self, code: int, told: str) -> str:
        name = self.entry.name
        if code != _SSH_FAILED:
            return _why(self.entry, code, told)
        last = last_line(told) or "it says nothing"
        cluster = _cluster_of(name.rpartition("@")[2])
        if cluster is not None:
            return (
                f"cannot reach {name} over ssh ({last}); it is a host of the cluster {cluster!r}, whose agents need no "
                "ssh: give --cluster beside --hosts"
            )
        if "resolve hostname" in last:
            return f"unknown host {name} ({last}); write it as ssh knows it, or give it an address in ~/.ssh/config"
        if "connect to host" in last:
            return f"cannot reach {name} ({last}); is it on, on the same network, and does it run sshd?"
        return f"cannot log in to {name} ({last}); `ssh {name} true` must work without a password (ssh-copy-id {name})"


def place_for(entry: HostEntry, *, program: Sequence[str] = ("ssh",), seconds: int = 10) -> Place:
    """This machine if it is meant, else over ssh; see `SshPlace`."""
    return LocalPlace(entry) if _is_here(entry.name) else SshPlace(entry, program, seconds)


def _is_here(name: str) -> bool:
    """``localhost``, this machine's own name, or one of its addresses; with a user before it, ssh is meant."""
    own = socket.gethostname()
    if name.lower() in ("localhost", own.lower(), own.partition(".")[0].lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((name, 0))
        except OSError:
            return False
    return True


def _cluster_of(name: str) -> str | None:
    """A cluster of this host that has a host of that name, by what its agent has written down."""
    from ferrule.cluster.client import remembered
    from ferrule.cluster.home import known_clusters

    for home in known_clusters():
        with suppress(ClusterError):
            if any(member.name == name for member in remembered(home).members.values()):
                return home.name
    return None


def _why(entry: HostEntry, code: int, told: str) -> str:
    python = entry.python or sys.executable
    if "No module named" in told and "ferrule" in told:
        return f"{python} on {entry.name} has no Ferrule; install it there, the same version as here"
    if code == _NOT_FOUND:
        return (
            f"there is no {python} on {entry.name}; say which Python has Ferrule there: --python PATH, or "
            'python = "..." in the hostfile'
        )
    if "Unknown option: -P" in told:
        return f"{python} on {entry.name} is too old; Ferrule needs Python 3.11"
    return f"the supervisor on {entry.name} ended with code {code}: {last_line(told) or 'it says nothing'}"


def _quoted(path: str) -> str:
    """For the shell there, which still has to expand ``~/``."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)

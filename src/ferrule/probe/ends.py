"""The two ends of a measurement: start an agent on a host, give it orders, and end it."""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Self, TypeVar

from ferrule import __version__
from ferrule.errors import ConfigError, LinkError
from ferrule.fabric.join.addresses import Interface
from ferrule.lab import Lab
from ferrule.lab.netns import control
from ferrule.links.reader import natural
from ferrule.links.remote import ssh_command
from ferrule.probe.orders import (
    LINE_LIMIT,
    Answer,
    Describe,
    Description,
    Device,
    Failed,
    Order,
    Start,
    decode_answer,
    encode,
)
from ferrule.probe.worker import MARK
from ferrule.process import tied

START_SECONDS = 20.0
_SSH_SECONDS = 8
_END_SECONDS = 3.0
_LAST_WORDS_SECONDS = 0.5
_WORKER = (sys.executable, "-m", "ferrule.probe.worker")

AnswerT = TypeVar("AnswerT", bound=Answer)


class End:
    """A host with an agent on it; a context manager. ``name``: as the user wrote it, then as the host calls itself.
    ``hint``: what to do when the agent does not start. ``here``: it runs on this very machine, as hosts of labs do.

    The one-time key of a measurement, the same for both ends, goes through the agent's standard input.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        hint: str = "",
        here: bool = True,
    ) -> None:
        self.name = name
        self.here = here
        self._hint = hint
        self.identity = ""
        self.kernel = ""
        self.interfaces: tuple[Interface, ...] = ()
        self.devices: Mapping[str, Device] = {}
        self.rdma: Mapping[str, Sequence[str]] = {}
        self._command = command
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._rest = b""

    def launch(self, key: bytes, seconds: float) -> Self:
        """Start the agent, which lives for at most ``seconds``; several hosts' may start at the same time."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        # Not `process.start`: the command is tied already, and is in this process's group, so that Ctrl-C reaches it.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | self._env,
        )
        self._tell(Start(key, seconds))
        self.order(Describe())
        return self

    def meet(self) -> Self:
        """Wait until it says who it is. Raises `LinkError`."""
        try:
            told = self.answer(START_SECONDS, Description)
        except LinkError as error:
            raise LinkError(f"{error}{self._hint}") from error
        if told.version != __version__:
            newest = max(told.version, __version__, key=natural)
            raise LinkError(
                f"{self.name} has ferrule {told.version}, this machine {__version__}; on the older one, "
                f"install {newest} from where the other one got it"
            )
        self.name, self.identity, self.kernel = told.host, told.identity, told.kernel
        self.interfaces, self.devices, self.rdma = told.interfaces, told.devices, told.rdma
        return self

    def answer(self, seconds: float, kind: type[AnswerT]) -> AnswerT:
        """To the oldest order that has none yet. Raises `LinkError` with what went wrong there, or when nothing
        comes in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                if line.startswith(MARK):
                    return expected(kind, decode_answer(line.removeprefix(MARK)), self.name)
                continue
            if len(line) > LINE_LIMIT + len(MARK):
                raise LinkError(f"{self.name} sent a line of more than {LINE_LIMIT} bytes, which no answer has")
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise LinkError(f"{self.name} did not answer within {seconds:g} s{self._said()}")
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise LinkError(f"the probe on {self.name} ended{self._said()}")
            self._rest += piece

    def close(self) -> None:
        """End the agent: it goes when its input does. Safe to call twice."""
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # it was gone already
                    pipe.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_SECONDS)
        if self._errors is not None:
            self._errors.close()
        self._process = self._errors = None

    def order(self, order: Order) -> None:
        """Give an order; `answer` waits for what comes of it."""
        self._tell(order)

    def _tell(self, message: Start | Order) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(message) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise LinkError(f"the probe on {self.name} ended{self._said()}") from error

    def _said(self) -> str:
        """The last line that the agent, or ssh, wrote to its standard error."""
        assert self._process is not None
        assert self._errors is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_SECONDS)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def expected(kind: type[AnswerT], answer: Answer, name: str) -> AnswerT:
    """The ``answer`` of the host with that name. Raises `LinkError` where it failed, or is of another kind."""
    if isinstance(answer, Failed):
        raise LinkError(f"{name}: {answer.error}")
    if not isinstance(answer, kind):
        raise LinkError(f"{name} answered {type(answer).__name__} where {kind.__name__} was due")
    return answer


def new_key() -> bytes:
    """A fresh key, for one measurement."""
    return secrets.token_bytes(32)


def in_standing_lab(lab: str, host: str) -> End:
    """A host of a lab that `ferrule lab up` started."""
    entry = control.enter(lab, host)
    return End(host, tied([*entry.prefix, *_WORKER]), entry.env)


def this_machine() -> End:
    """The host on which this process runs, also a host of a lab."""
    return End("this machine", tied(_WORKER))


def over_ssh(destination: str, remote_command: str = "ferrule") -> End:
    """A host that ssh reaches without asking for a password. ``remote_command``: how Ferrule is called there."""
    if not destination or destination.startswith("-"):
        raise ConfigError(f"{destination!r} is no host; write it as for ssh: strix-b or me@strix-b")
    command = ssh_command(destination, f"{remote_command} links probe-server", _SSH_SECONDS)
    hint = (
        f"; `ssh {destination} {remote_command} version` must work without a password (ssh-copy-id {destination}; "
        "--remote-command says how ferrule is called there)"
    )
    return End(destination, tied(command), hint=hint, here=False)


def in_lab_host(lab: Lab, host: int) -> End:
    """A host of a lab that this process holds."""
    return End(lab.name(host), tied(lab.command(host, _WORKER)), lab.env(host))

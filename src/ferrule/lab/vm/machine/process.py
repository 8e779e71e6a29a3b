"""One QEMU process: started, waited for with a deadline, and never left behind.

Its image, console and results are files without names (memfd): parallel guests cannot collide, and when this process
is killed the kernel kills QEMU and frees them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ferrule.errors import GuestError, LabError
from ferrule.lab.vm.machine.qemu import Accelerator, Hardware, Qemu
from ferrule.process import tied

_TAIL_LINES = 30


class Machine:
    """A guest's process. Fill `image`, then `start`, `wait` and `close`.

    ``streams``: names of ports by which guest and host talk; ``terminals``: how many consoles it has beside the serial
    one; ``controllers``, ``disk``: see `Hardware`. The kernel ends the process when the *thread* that called `start`
    ends, so start from one that lives on.
    """

    def __init__(
        self,
        qemu: Qemu,
        accelerator: Accelerator,
        kernel: Path,
        *,
        cpus: int,
        memory_mb: int,
        streams: Sequence[str] = (),
        terminals: int = 0,
        controllers: Sequence[Path] = (),
        disk: Path | None = None,
    ) -> None:
        self._qemu = qemu
        self._accelerator = accelerator
        self._kernel = kernel
        self._cpus = cpus
        self._memory_mb = memory_mb
        self._controllers = controllers
        self._disk = disk
        pairs = {name: socket.socketpair() for name in (*streams, *map(_terminal, range(terminals)))}
        self._ours = {name: pair[0] for name, pair in pairs.items()}
        self._theirs = {name: pair[1] for name, pair in pairs.items()}
        self._terminals = terminals
        self.image: BinaryIO = _unnamed("image")
        self._console = _unnamed("console")
        self._results = _unnamed("results")
        self._errors: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LabError("this guest was not started")
        return self._process.pid

    def stream(self, name: str) -> socket.socket:
        """Our end of one of ``streams``."""
        return self._ours[name]

    def terminal(self, number: int) -> socket.socket:
        """Our end of the console hvc ``number``."""
        return self._ours[_terminal(number)]

    def start(self) -> None:
        self.image.flush()
        ends = {name: end.fileno() for name, end in self._theirs.items()}
        terminals = [ends.pop(_terminal(number)) for number in range(self._terminals)]
        hardware = Hardware(
            kernel=self._kernel,
            image=_path(self.image),
            console=_path(self._console),
            results=_path(self._results),
            cpus=self._cpus,
            memory_mb=self._memory_mb,
            streams=list(ends.items()),
            terminals=terminals,
            controllers=self._controllers,
            disk=self._disk,
        )
        kept = [file.fileno() for file in (self.image, self._console, self._results)]
        self._process = subprocess.Popen(
            tied(self._qemu.line(self._accelerator, hardware)),
            env={**os.environ, **self._qemu.env},
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[*kept, *ends.values(), *terminals],
            process_group=0,
        )
        for end in self._theirs.values():  # so that we hear it when QEMU ends
            end.close()

    def wait(self, seconds: float) -> None:
        """Wait until the guest has powered off. Raises `GuestError` when it has not after ``seconds`` (it is killed
        then), or when QEMU failed."""
        if self._process is None:
            raise LabError("this guest was not started")
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self.error(f"the guest did not power off within {seconds:g} s and was killed") from None
        if status != 0:
            raise self.error(f"QEMU ended with status {status}: {self._said() or 'it said nothing'}")

    def error(self, what: str) -> GuestError:
        """A `GuestError` with the end of the console in its message."""
        console = self.console()
        return GuestError(f"{what}; the last lines of its console:\n{tail(console)}", console=console)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def console(self) -> str:
        """What the guest has written to its serial console so far."""
        return _content(self._console).decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")

    def results(self) -> bytes:
        """What the guest has sent so far."""
        return _content(self._results)

    def close(self) -> None:
        self.kill()
        for file in (self.image, self._console, self._results, self._errors):
            file.close()
        for end in (*self._ours.values(), *self._theirs.values()):
            end.close()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()


def tail(console: str) -> str:
    """The last lines of what a guest said."""
    return "\n".join(console.splitlines()[-_TAIL_LINES:]) or "(nothing)"


def _unnamed(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(f"ferrule-{name}"), "w+b")


def _terminal(number: int) -> str:
    return f"terminal{number}"


def _path(file: BinaryIO) -> str:
    return f"/proc/self/fd/{file.fileno()}"


def _content(file: BinaryIO) -> bytes:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)

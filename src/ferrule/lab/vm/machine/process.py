"""One QEMU process: started, waited for with a deadline, and never left behind.

Its image, console and results are files without names (memfd): parallel guests cannot collide, and when this process
is killed the kernel kills QEMU and frees them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import BinaryIO

from ferrule.errors import GuestError, LabError
from ferrule.lab.vm.machine.guest import Guest, tail
from ferrule.lab.vm.machine.qemu import Accelerator, Hardware, Qemu
from ferrule.process import start


class Machine:
    """The process of ``guest``. Fill `image`, then `start`, `wait` and `close`.

    The kernel ends the process when the *thread* that called `start` ends, so start from one that lives on.
    """

    def __init__(self, qemu: Qemu, accelerator: Accelerator, kernel: Path, guest: Guest) -> None:
        self._ours: dict[str, socket.socket] = {}
        self._theirs: dict[str, socket.socket] = {}
        terminals = [_terminal(number) for number in range(guest.terminals)]
        for name in (*guest.streams, *terminals):
            self._ours[name], self._theirs[name] = socket.socketpair()
        self.image, self._console, self._results = map(_unnamed, ("image", "console", "results"))
        self._errors: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        hardware = Hardware(
            kernel=kernel,
            image=_path(self.image),
            console=_path(self._console),
            results=_path(self._results),
            cpus=guest.cpus,
            memory_mb=guest.memory_mb,
            streams=[(name, self._theirs[name].fileno()) for name in guest.streams],
            terminals=[self._theirs[name].fileno() for name in terminals],
            controllers=guest.controllers,
            disk=guest.disk,
        )
        self._command = qemu.line(accelerator, hardware)
        self._env = qemu.env
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LabError("this guest was not started")
        return self._process.pid

    def stream(self, name: str) -> socket.socket:
        """Our end of one of `Guest.streams`."""
        return self._ours[name]

    def terminal(self, number: int) -> socket.socket:
        """Our end of the console hvc ``number``."""
        return self._ours[_terminal(number)]

    def start(self) -> None:
        self.image.flush()
        files = [file.fileno() for file in (self.image, self._console, self._results)]
        self._process = start(
            self._command,
            env={**os.environ, **self._env},
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[*files, *(end.fileno() for end in self._theirs.values())],
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
        """Output of the guest's serial console so far."""
        return _content(self._console).decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")

    def results(self) -> bytes:
        """Files that the guest has sent so far."""
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


def _unnamed(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(f"ferrule-{name}"), "w+b")


def _terminal(number: int) -> str:
    return f"terminal{number}"


def _path(file: BinaryIO) -> str:
    return f"/proc/self/fd/{file.fileno()}"


def _content(file: BinaryIO) -> bytes:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)

"""A guest that was booted: wait for its end, or give it commands."""

from __future__ import annotations

import io
import queue
import re
import socket
import tarfile
import threading
import time
from collections.abc import Sequence
from typing import Self

from ferrule.errors import ConfigError, LabError
from ferrule.lab.vm.kernel.kernel_log import complaints
from ferrule.lab.vm.machine.guest import Guest, Result
from ferrule.lab.vm.machine.process import Machine
from ferrule.lab.vm.machine.session import Completed, Session, SessionLost, SessionTimeout, Sink, nowhere

_RESET_SECONDS = 20.0
_FALL_SECONDS = 10.0


class RunningGuest:
    """`wait` for it, `run` commands in it if it has sessions, or leave the context to kill it."""

    def __init__(self, machine: Machine, guest: Guest) -> None:
        self._machine = machine
        self._started = time.monotonic()
        self.name = guest.name
        self._sessions = [Session(*self.sockets(number)) for number in guest.session_numbers]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in guest.session_numbers[1:]:
            self._free.put(number)
        self._ours = threading.Lock()

    @property
    def pid(self) -> int:
        """QEMU's process id."""
        return self._machine.pid

    def console(self) -> str:
        """Console output so far."""
        return self._machine.console()

    def terminal(self, number: int) -> socket.socket:
        """Our end of its console hvc ``number``."""
        return self._machine.terminal(number)

    def run(
        self, script: str, timeout: float = 60.0, *, output: Sink | None = None, errors: Sink | None = None
    ) -> Completed:
        """Run a bash ``script`` as root and wait at most ``timeout`` seconds, the rest of the guest's boot included.

        ``output`` and ``errors`` get what it writes as it comes; without them it is in the answer. Several threads may
        run one each, as many as the guest has sessions. Raises `GuestError` when the guest ends, or the script does not
        in time; it is killed then, and the guest goes on.
        """
        deadline = time.monotonic() + timeout
        number = self.take_session(timeout)
        kept: tuple[list[bytes], list[bytes]] = ([], [])
        try:
            status = self._sessions[number].run(
                script, deadline - time.monotonic(), output or kept[0].append, errors or kept[1].append
            )
        except SessionTimeout:
            self.reset_session(number)
            raise self._machine.error(f"{self.name}: {_first_line(script)!r} took longer than {timeout:g} s") from None
        except SessionLost:
            raise self._fallen() from None
        except LabError:  # a script that is too long: nothing ran
            self.free_session(number)
            raise
        self.free_session(number)
        return Completed(status, *(b"".join(parts).decode(errors="replace") for parts in kept))

    def check(self, script: str, timeout: float = 60.0) -> str:
        """The output of a ``script`` that must succeed. Raises `GuestError` with what it wrote if it does not."""
        done = self.run(script, timeout)
        if done.exit_code != 0:
            said = (done.output + done.errors).strip()
            raise self._machine.error(
                f"{self.name}: {_first_line(script)!r} ended with status {done.exit_code} and said: {said or 'nothing'}"
            )
        return done.output

    def complaints(self, timeout: float = 60.0, allowed: Sequence[str] = ()) -> list[str]:
        """Errors and warnings in its kernel's log; see `lab.vm.kernel.kernel_log.complaints`.

        A kernel that looks for leaks does that now, which takes some ten seconds.
        """
        return complaints(self.check("lab-kernel-log", timeout), allowed)

    def take_session(self, timeout: float) -> int:
        """The number of a free session, the caller's until `free_session` or `reset_session`."""
        if len(self._sessions) < 2:
            raise ConfigError(f"{self.name} takes no commands: give the guest sessions")
        try:
            return self._free.get(timeout=timeout)
        except queue.Empty:
            raise self._machine.error(f"all {len(self._sessions) - 1} sessions of {self.name} are busy") from None

    def sockets(self, number: int) -> tuple[socket.socket, socket.socket]:
        """Our ends of a session that was taken, for `Session` in another process."""
        return self._machine.stream(f"session{number}"), self._machine.stream(f"errors{number}")

    def free_session(self, number: int) -> None:
        """Give back a session that was taken; what ran in it has ended."""
        self._free.put(number)

    def reset_session(self, number: int) -> None:
        """End what runs in a session that was taken, and make it free. Raises `GuestError` where that cannot be."""
        try:
            with self._ours:
                kill = f"kill -KILL -- -$(cat /run/lab/job{number}) 2> /dev/null; true"
                self._sessions[0].run(kill, _RESET_SECONDS, nowhere, nowhere)
            self._sessions[number].run(":", _RESET_SECONDS, nowhere, nowhere)
        except SessionTimeout:
            raise self._machine.error(f"{self.name} does not react within {_RESET_SECONDS:g} s") from None
        except SessionLost:
            raise self._fallen() from None
        self._free.put(number)

    def shut_down(self, timeout: float = 60.0) -> Result:
        """End a guest that takes commands; see `wait`."""
        with self._ours:
            try:
                self._sessions[0].run("echo > /run/lab/stop", timeout, nowhere, nowhere)
            except SessionTimeout:
                raise self._machine.error(f"{self.name} does not shut down within {timeout:g} s") from None
            except SessionLost:
                pass
        return self.wait(timeout)

    def wait(self, timeout: float) -> Result:
        """Its result, at most ``timeout`` seconds from now.

        Raises `GuestError`, with the end of the console, if it does not finish in time (it is killed then), crashes,
        or powers off before its script ended.
        """
        self._machine.wait(timeout)
        seconds = time.monotonic() - self._started
        try:
            files = _unpack(self._machine.results())
            exit_code = int(files.pop("lab/status"))
        except (tarfile.TarError, KeyError, ValueError):
            panic = re.search(r"Kernel panic - not syncing: (.*)", self._machine.console())
            what = f"the guest crashed: {panic[1]}" if panic else "the guest went down before its script ended"
            raise self._machine.error(what) from None
        results = {name.removeprefix("results/"): data for name, data in files.items()}
        return Result(exit_code, self._machine.console(), results, seconds)

    def close(self) -> None:
        self._machine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fallen(self) -> Exception:
        """Reason why a guest that should be up is not."""
        try:
            result = self.wait(_FALL_SECONDS)
            result.check()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
            return error
        return self._machine.error(f"{self.name} went down")


def _first_line(script: str) -> str:
    return next((line.strip() for line in script.splitlines() if line.strip()), "")[:100]


def _unpack(data: bytes) -> dict[str, bytes]:
    files = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                files[member.name] = content.read()
    return files

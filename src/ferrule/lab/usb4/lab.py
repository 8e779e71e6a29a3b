"""A lab of emulated USB4 controllers, from the side of the process that has it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ferrule import files
from ferrule.errors import ConfigError, LabError
from ferrule.files import line_within
from ferrule.lab.usb4.network import TRAINING_SECONDS
from ferrule.lab.usb4.profile import CONTROL, PLAN, Fault, Plan, Usb4Cable, Usb4Host, socket_name, to_json
from ferrule.process import tied

_START_SECONDS = 20.0
_ASK_SECONDS = 10.0
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LOCK_SECONDS = 1.0
_PREFIX, _LOCK = "ferrule-usb4-", "lock"
_LONGEST_PATH = 100  # bytes of a socket's path; the kernel takes 107


class Usb4Lab:
    """Starts a process that emulates these hosts' controllers and the cables between them; it ends with this object,
    and with the thread that made it.

    ``directory``: for its sockets, empty or not there yet; default: one of its own, which goes with it. ``trace``: a
    pcapng file to write, with at most ``trace_bytes`` of each packet. ``training``: seconds from plugging in to a link.
    ``seed``: of what chance does. Raises `ConfigError` for what does not fit together, `LabError` if it does not start.
    """

    def __init__(
        self,
        hosts: Sequence[Usb4Host],
        cables: Sequence[Usb4Cable] = (),
        *,
        directory: Path | None = None,
        trace: Path | None = None,
        trace_bytes: int = 4096,
        training: float = TRAINING_SECONDS,
        seed: int = 0,
    ) -> None:
        if sys.platform != "linux":
            raise LabError(f"emulated USB4 controllers need Linux, and this is {sys.platform}")
        self.plan = Plan(tuple(hosts), tuple(cables))
        self._lock: int | None = None
        if directory is None:
            _reap()
            self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        else:
            self.directory = directory.absolute()
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._own = directory is None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            if self._own:
                self._lock = _hold(self.directory)
            self._check_paths()
            plan = self.directory / PLAN
            path = None if trace is None else str(trace.absolute())
            said = {"plan": to_json(self.plan), "trace": path, "trace_bytes": trace_bytes}
            plan.write_text(json.dumps(said | {"training": training, "seed": seed}))
            self._start([sys.executable, "-m", "ferrule.lab.usb4.server", str(plan)])
        except BaseException:
            self.close()
            raise

    def sockets(self, host: str) -> list[Path]:
        """One for each of the host's controllers, for QEMU's ``vfio-user-pci``."""
        return [self.directory / socket_name(host, number) for number in range(self.plan.host(host).controllers)]

    def qemu_arguments(self, host: str, memory_mb: int) -> list[str]:
        """What QEMU (10.1 or newer) needs on its command line, with a guest's memory in a file that is shared.

        Its ``-machine`` must say ``memory-backend=usb4-memory``. Writes to registers must not be posted: a driver that
        stops a ring takes the memory back at once. (QEMU does not post them where registers are mapped, as ours are.)
        """
        memory = f"memory-backend-memfd,id=usb4-memory,size={memory_mb}M,share=on"
        arguments = ["-object", memory]
        for path in self.sockets(host):
            device = {
                "driver": "vfio-user-pci",
                "rombar": 0,
                "socket": {"type": "unix", "path": str(path)},
            }
            arguments += ["-device", json.dumps(device)]
        return arguments

    def plug(self, cable: str) -> None:
        self._ask("plug", cable=cable, on=True)

    def unplug(self, cable: str) -> None:
        self._ask("plug", cable=cable, on=False)

    def fault(self, cable: str, fault: Fault) -> None:
        """One more thing that is wrong; one of the same kind and sender is replaced."""
        self._ask("fault", cable=cable, kind=fault.kind.value, chance=fault.chance, sender=fault.sender)

    def heal(self, cable: str) -> None:
        """Take all faults away; a cable that was unplugged stays so."""
        self._ask("heal", cable=cable)

    def reshape(self, cable: str, *, rate: float | None = None, delay_us: float = 0.0) -> None:
        """Another rate (bits per second) and delay of a cable in use."""
        Usb4Cable(cable, ("a", 0), ("b", 0), rate=rate, delay_us=delay_us)  # raises for what no cable has
        self._ask("reshape", name=cable, rate=rate, delay_us=delay_us)

    def state(self) -> dict[str, Any]:
        """``cables``: of each its ``link`` (``down``, ``training``, ``up``), ``lanes`` and ``faults``; ``hosts``: of
        each controller whether a guest has it (``connected``) and its driver runs (``enabled``)."""
        state: dict[str, Any] = self._ask("state")
        return state

    def counters(self) -> dict[str, Any]:
        """Frames, bytes and what became of them, for each host's controllers and each cable and sender; and how many
        packets the trace had no room for (``untraced``)."""
        counters: dict[str, Any] = self._ask("counters")
        return counters

    def wait_link(self, cable: str, link: str, timeout: float) -> None:
        """Until a cable's link is ``up`` or ``down``. Raises `LabError` after ``timeout`` seconds."""
        self.plan.cable(cable)  # there is one of that name
        deadline = time.monotonic() + timeout
        while (now := self.state()["cables"][cable]["link"]) != link:
            if time.monotonic() > deadline:
                raise LabError(f"{cable} is {now} and did not get {link} within {timeout:g} s; see Usb4Lab.state()")
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_SECONDS)
        if self._own:
            shutil.rmtree(self.directory, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_paths(self) -> None:
        for host in self.plan.hosts:
            for path in self.sockets(host.name):
                if len(str(path).encode()) > _LONGEST_PATH:
                    raise ConfigError(f"{path} is too long for a socket; give the lab a shorter directory")

    def _start(self, command: list[str]) -> None:
        errors = self.directory / "server.log"
        with errors.open("wb") as log:
            self._process = subprocess.Popen(
                tied(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,  # Ctrl-C is for the process that has the lab, as with guests
            )
        assert self._process.stdout is not None
        with self._process.stdout as words:
            line = line_within(words.fileno(), _START_SECONDS)
        if line.strip() != b"ready":
            said = errors.read_text(errors="replace").strip()[-2000:]
            raise LabError(f"the USB4 lab did not start within {_START_SECONDS:g} s: {said or 'it said nothing'}")

    def _ask(self, request: str, **arguments: Any) -> Any:
        path = self.directory / CONTROL
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_ASK_SECONDS)
                connection.connect(str(path))
                connection.sendall(json.dumps({"do": request, **arguments}).encode() + b"\n")
                reply = json.loads(connection.makefile("rb").readline())
        except (OSError, ValueError) as error:
            raise LabError(f"the USB4 lab in {self.directory} does not answer ({error})") from error
        if "error" in reply:
            raise (ConfigError if reply.get("code") == ConfigError.code else LabError)(reply["error"])
        return reply["answer"]


def _hold(directory: Path) -> int:
    """A lock in a lab's directory, held as long as the process that has the lab lives. Under its name it is there only
    held."""
    lock = files.hold(directory / f".{_LOCK}", _LOCK_SECONDS)
    assert lock is not None  # the directory is new
    (directory / f".{_LOCK}").rename(directory / _LOCK)
    return lock


def _reap() -> None:
    """Clear away the directories of labs whose owners were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if left.lstat().st_uid == os.getuid() and (left / _LOCK).is_file() and not files.held(left / _LOCK):
                shutil.rmtree(left)

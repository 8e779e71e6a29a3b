"""A lab of emulated USB4 controllers: starts the process that emulates them, and asks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Self, TypeVar

from ferrule import files
from ferrule.errors import ConfigError, LabError
from ferrule.files import write_record
from ferrule.lab.daemon.messages import Request, ask
from ferrule.lab.usb4.messages import (
    GetCounters,
    GetState,
    Heal,
    Order,
    Plug,
    Reshape,
    SetFault,
    Usb4Counters,
    Usb4State,
)
from ferrule.lab.usb4.network import TRAINING_SECONDS
from ferrule.lab.usb4.profile import CONTROL, LOG, ORDER, Fault, Plan, Usb4Cable, Usb4Host, socket_name
from ferrule.process import NotReady, start_until_ready

_START_SECONDS = 20.0
_ASK_SECONDS = 10.0
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LOCK_SECONDS = 1.0
_PREFIX, _LOCK = "ferrule-usb4-", "lock"
_LONGEST_PATH_BYTES = 100  # bytes of a socket's path; the kernel takes 107
_NOTHING = type(None)
_T = TypeVar("_T")


class Usb4Lab:
    """Starts a process that emulates these hosts' controllers and the cables between them; it ends with this object,
    and with the thread that made it.

    ``directory``: for its sockets, empty or not there yet; default: one of its own, which goes with it. ``trace``: a
    pcapng file to write. ``training``: seconds from plugging in to a link. Raises `ConfigError` for what does not fit
    together, `LabError` if it does not start.
    """

    def __init__(
        self,
        hosts: Sequence[Usb4Host],
        cables: Sequence[Usb4Cable] = (),
        *,
        directory: Path | None = None,
        trace: Path | None = None,
        training: float = TRAINING_SECONDS,
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
            for socket in (path for host in self.plan.hosts for path in self.sockets(host.name)):
                if len(str(socket).encode()) > _LONGEST_PATH_BYTES:
                    raise ConfigError(f"{socket} is too long for a socket; give the lab a shorter directory")
            path = "" if trace is None else str(trace.absolute())
            order = self.directory / ORDER
            write_record(order, Order(self.plan, path, training))
            self._start([sys.executable, "-m", "ferrule.lab.usb4.server", str(order)])
        except BaseException:
            self.close()
            raise

    def sockets(self, host: str) -> list[Path]:
        """One for each of the host's controllers, for QEMU's ``vfio-user-pci``."""
        return [self.directory / socket_name(host, number) for number in range(self.plan.host(host).controllers)]

    def qemu_arguments(self, host: str, memory_mb: int) -> list[str]:
        """Arguments for QEMU's (10.1 or newer) command line, with a guest's memory in a file that is shared.

        Its ``-machine`` must say ``memory-backend=usb4-memory``. Writes to registers must not be posted: a driver that
        stops a ring takes the memory back at once. (QEMU does not post them where registers are mapped, as ours are.)
        """
        return qemu_arguments(self.sockets(host), memory_mb)

    def plug(self, cable: str) -> None:
        self._ask(Plug(cable, True), _NOTHING)

    def unplug(self, cable: str) -> None:
        self._ask(Plug(cable, False), _NOTHING)

    def fault(self, cable: str, fault: Fault) -> None:
        """Add a fault; one of the same kind and sender is replaced."""
        self._ask(SetFault(cable, fault.kind, fault.chance, fault.sender), _NOTHING)

    def heal(self, cable: str) -> None:
        """Take all faults away; a cable that was unplugged stays so."""
        self._ask(Heal(cable), _NOTHING)

    def reshape(self, cable: str, *, rate: float | None = None, delay_us: float = 0.0) -> None:
        """Another rate (bits per second) and delay of a cable in use."""
        Usb4Cable(cable, ("a", 0), ("b", 0), rate=rate, delay_us=delay_us)  # raises for what no cable has
        self._ask(Reshape(cable, rate, delay_us), _NOTHING)

    def state(self) -> Usb4State:
        return self._ask(GetState(), Usb4State)

    def counters(self) -> Usb4Counters:
        return self._ask(GetCounters(), Usb4Counters)

    def wait_link(self, cable: str, link: str, timeout: float) -> None:
        """Until a cable's link is ``up`` or ``down``. Raises `LabError` after ``timeout`` seconds."""
        self.plan.cable(cable)  # there is one of that name
        deadline = time.monotonic() + timeout
        while (now := self.state().cables[cable].link) != link:
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, command: list[str]) -> None:
        try:
            self._process, _ = start_until_ready(command, self.directory / LOG, _START_SECONDS, outlive=False)
        except NotReady as said:
            raise LabError(f"the USB4 lab did not start within {_START_SECONDS:g} s: {said}") from None

    def _ask(self, request: Request, kind: type[_T]) -> _T:
        who = f"the USB4 lab in {self.directory}"
        return ask(self.directory / CONTROL, request, kind, seconds=_ASK_SECONDS, who=who)


def qemu_arguments(sockets: Sequence[Path], memory_mb: int, slots: Sequence[int] = ()) -> list[str]:
    """As `Usb4Lab.qemu_arguments`; ``slots``: the PCI slot of each controller, default: as QEMU chooses."""
    # The server of the controllers reads and writes the guest's memory as hardware does.
    arguments = ["-object", f"memory-backend-memfd,id=usb4-memory,size={memory_mb}M,share=on"]
    for path, slot in zip_longest(sockets, slots):
        place = {} if slot is None else {"addr": f"{slot:#x}"}
        device = {"driver": "vfio-user-pci", "rombar": 0, **place, "socket": {"type": "unix", "path": str(path)}}
        arguments += ["-device", json.dumps(device)]
    return arguments


def _hold(directory: Path) -> int:
    """Lock a lab's directory until this process dies. The file gets its name when it is locked."""
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

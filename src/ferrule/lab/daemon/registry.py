"""Where labs that are up are written down: one directory each, which only their user can read.

``XDG_RUNTIME_DIR/ferrule/labs/NAME`` or ``/tmp/ferrule-UID/labs/NAME``. The process that holds a lab has a lock on the
file ``lock`` in it from its birth, given by its starter, until its death: so no one has to guess from process
numbers which is alive, and nothing that has begun can be missed. What is left of a
lab whose holder was killed, the directory and programs in its hosts, is cleared away by the next command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ferrule import files
from ferrule.errors import ConfigError, LabError
from ferrule.files import locked, runtime_directory, write_whole
from ferrule.lab.netns.namespace import ENTER, enter_path, process_ids

STATE, CONTROL, LOCK, LOG = "state.json", "control", "lock", "log"
LABS = "labs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_LOCK_SECONDS = 60.0
_HOLD_SECONDS = 2.0
_REAP_SECONDS = 5.0
_SO_NETNS_COOKIE = 71


def folder(kind: str = LABS) -> Path:
    """The directory of all labs of this user, made if it is not there. ``kind``: "labs" of emulated hosts, or "vms" of
    virtual machines. Raises `LabError` if others can change it."""
    try:
        return runtime_directory(kind)
    except PermissionError as error:
        raise LabError(str(error)) from None


def check_name(name: str) -> str:
    """A name for a lab: also that of a directory. Raises `ConfigError`."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a lab; use up to 40 letters, digits, dots, dashes")
    return name


@contextmanager
def alone(kind: str = LABS) -> Iterator[Path]:
    """No other process of this user makes or clears away a lab of this kind meanwhile."""
    labs = folder(kind)
    with ExitStack() as kept:
        try:
            kept.enter_context(locked(labs / f".{LOCK}", _LOCK_SECONDS))
        except TimeoutError:
            raise LabError(f"another `ferrule lab` command has been busy for {_LOCK_SECONDS:g} s; see {labs}") from None
        yield labs


def hold(lab: Path) -> int:
    """Take the lock of a lab's directory; returns its descriptor. A process that inherits it holds the lock, too."""
    lock = files.hold(lab / LOCK, _HOLD_SECONDS)  # longer than anybody only looks whether it is held
    if lock is None:
        raise LabError(f"the lab {lab.name!r} is held by another process")
    return lock


def held(lab: Path) -> bool:
    """Whether the process that holds the lab lives."""
    return files.held(lab / LOCK)


def write_state(lab: Path, state: Mapping[str, Any]) -> None:
    """In one piece: a reader never sees half of it."""
    write_whole(lab / STATE, json.dumps(state))


def read_state(lab: Path) -> dict[str, Any]:
    """What its holder wrote; empty where it did not come so far."""
    try:
        state: dict[str, Any] = json.loads((lab / STATE).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return state


def reap(labs: Path) -> list[str]:
    """Clear away what is left of labs whose holder died; returns their names. Call it `alone`."""
    gone = []
    for lab in sorted(path for path in labs.iterdir() if path.is_dir()):
        if not held(lab):
            _end_programs(read_state(lab))
            shutil.rmtree(lab, ignore_errors=True)
            gone.append(lab.name)
    return gone


def boot() -> str:
    """A word for this run of the kernel: its numbers mean nothing after the next start."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cookie(namespace: str, user: str | None = None) -> int:
    """A network namespace's number, which the kernel never gives to another one (its inode it does).

    ``user``: the user namespace to which it belongs, where that may be another one. Raises `OSError` or `LabError`.
    """
    try:
        with enter_path(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
    except LabError:
        if user is None:
            raise
    # Only a process with a single thread can go into another user namespace.
    ask = f"import socket; print(socket.socket().getsockopt(1, {_SO_NETNS_COOKIE}, 8).hex())"
    enter = [sys.executable, "-I", "-S", ENTER, "--user", user, namespace]
    done = subprocess.run(
        [*enter, sys.executable, "-I", "-S", "-c", ask],
        capture_output=True,
        text=True,
        check=False,
        timeout=_REAP_SECONDS,
    )
    if done.returncode != 0:
        raise LabError(done.stderr.strip())
    return int.from_bytes(bytes.fromhex(done.stdout), sys.byteorder)


def _end_programs(state: Mapping[str, Any]) -> None:
    """Kill what was started in hosts whose holder is dead."""
    cookies = {host["cookie"] for host in state.get("hosts", ())}
    inodes = {host["inode"] for host in state.get("hosts", ())}
    if state.get("boot") != boot():
        return
    deadline = time.monotonic() + _REAP_SECONDS
    while time.monotonic() < deadline:
        left = [pid for pid in process_ids() if _is_inside(pid, inodes, cookies)]
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                process = os.pidfd_open(pid)
                try:
                    if _is_inside(pid, inodes, cookies):  # still the same one
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                finally:
                    os.close(process)
        time.sleep(0.01)


def _is_inside(pid: int, inodes: set[int], cookies: set[int]) -> bool:
    """The inode first, which is quick; then what is certain."""
    path = f"/proc/{pid}/ns/net"
    try:
        return os.stat(path).st_ino in inodes and cookie(path, f"/proc/{pid}/ns/user") in cookies  # noqa: PTH116 - it is a link to nowhere
    except (OSError, LabError, subprocess.TimeoutExpired):  # it ended, or belongs to another user
        return False

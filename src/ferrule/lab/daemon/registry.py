"""The directories of the labs that are up, which only their user can read.

``XDG_RUNTIME_DIR/ferrule/labs/NAME`` or ``/tmp/ferrule-UID/labs/NAME``. The process that holds a lab inherits a lock on
the file ``lock`` in it, and has that until it dies: the lock tells which labs are alive, process ids do not. What a
killed holder leaves, the directory and programs in its hosts, is cleared away by the next command.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from ferrule import files
from ferrule.errors import ConfigError, LabError
from ferrule.files import FileRecord, locked, read_record, runtime_directory, write_record
from ferrule.lab.netns.namespace import ENTER, enter_path, inode_of, kill_inside
from ferrule.process import boot_id

STATE, CONTROL, LOCK, LOG = "state.json", "control", "lock", "log"
LABS = "labs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_LOCK_SECONDS = 60.0
_HOLD_SECONDS = 2.0
_REAP_SECONDS = 5.0
_SO_NETNS_COOKIE = 71


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """``path``: of its network namespace; ``cookie``: that one's number, which the kernel never uses again."""

    name: str
    path: str
    inode: int
    cookie: int


class State(FileRecord, frozen=True, tag="lab"):
    """State file of every kind of lab. ``user``: the path of the holder's user namespace."""

    pid: int
    boot: str = ""
    user: str = ""
    hosts: tuple[HostState, ...] = ()


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
    lock = files.hold(lab / LOCK, _HOLD_SECONDS)  # longer than `held` takes in another process
    if lock is None:
        raise LabError(f"the lab {lab.name!r} is held by another process")
    return lock


def held(lab: Path) -> bool:
    """Whether the process that holds the lab lives."""
    return files.held(lab / LOCK)


def write_state(lab: Path, state: State) -> None:
    """In one piece: a reader never sees half of it."""
    write_record(lab / STATE, state)


def read_state(lab: Path) -> State | None:
    """State that its holder wrote; None where it did not come so far."""
    try:
        return read_record(lab / STATE, State)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def reap(labs: Path) -> list[str]:
    """Clear away what is left of labs whose holder died; returns their names. Call it `alone`."""
    gone = []
    for lab in sorted(path for path in labs.iterdir() if path.is_dir()):
        if not held(lab):
            _end_programs(read_state(lab))
            shutil.rmtree(lab, ignore_errors=True)
            gone.append(lab.name)
    return gone


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


def _end_programs(state: State | None) -> None:
    """Kill what was started in hosts whose holder is dead."""
    if state is None or state.boot != boot_id():
        return  # numbers of another boot mean nothing
    cookies, inodes = {host.cookie for host in state.hosts}, {host.inode for host in state.hosts}
    kill_inside(lambda pid: _is_inside(pid, inodes, cookies), _REAP_SECONDS)


def _is_inside(pid: int, inodes: set[int], cookies: set[int]) -> bool:
    """The inode first, which is quick; then what is certain."""
    try:
        return inode_of(pid) in inodes and cookie(f"/proc/{pid}/ns/net", f"/proc/{pid}/ns/user") in cookies
    except (OSError, LabError, subprocess.TimeoutExpired):  # it ended, or belongs to another user
        return False

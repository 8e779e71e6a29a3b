"""The client of a lab's background process: start it, ask it, end it. See `ferrule.lab.daemon.server`."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ferrule.errors import ConfigError, LabError
from ferrule.files import line_within
from ferrule.lab.daemon import registry

ASK_SECONDS = 20.0
_DOWN_SECONDS = 20.0
_LOG_TAIL = 2000


def ask(lab: Path, request: str, *, seconds: float = ASK_SECONDS, **arguments: Any) -> Any:
    """Ask the process that holds a lab, and wait at most ``seconds``. Raises `ConfigError` or `LabError` with what it
    answers."""
    try:
        with connect(lab) as connection:
            connection.settimeout(seconds)
            connection.sendall(json.dumps({"do": request, **arguments}).encode() + b"\n")
            reply = json.loads(connection.makefile("rb").readline())
    except (OSError, ValueError) as error:
        raise LabError(f"the lab {lab.name!r} does not answer ({error}); end it (`down {lab.name}`)") from error
    return unwrap(reply)


def connect(lab: Path) -> socket.socket:
    """A connection to the process that holds a lab. Raises `OSError`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ASK_SECONDS)
        connection.connect(str(lab / registry.CONTROL))
    except BaseException:
        connection.close()
        raise
    return connection


def unwrap(reply: Any) -> Any:
    """What is in an answer. Raises `ConfigError` or `LabError` if that is an error."""
    if "error" in reply:
        kind = ConfigError if reply.get("code") == ConfigError.code else LabError
        raise kind(reply["error"])
    return reply.get("answer")


def up(kind: str, title: str, command: Callable[[Path], Sequence[str]], seconds: float, down: str) -> None:
    """Make a lab's directory and start the process that holds it. ``command``: of a directory; ``down``: the words of
    the command that ends labs of this kind. Raises `ConfigError` for a name that is taken, and what the process says.
    """
    with registry.alone(kind) as labs:
        registry.reap(labs)
        folder = labs / title
        if folder.exists():
            raise ConfigError(f"there is a lab {title!r} already; end it ({down} {title}) or use --as NAME")
        folder.mkdir(mode=0o700)
        try:
            _start(command(folder), folder, seconds)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def down(kind: str, names: Sequence[str], seconds: float) -> list[str]:
    """End these labs, or all, and clear away what is left of others; returns the names of those that ended."""
    with registry.alone(kind) as labs:
        present = [lab.name for lab in labs.iterdir() if lab.is_dir()]
        for name in names:
            if name not in present:
                raise ConfigError(f"there is no lab {name!r} to end; there are {', '.join(present) or 'none'}")
        for name in names or present:
            _end(labs / name, seconds)
        return sorted({*registry.reap(labs)} & {*(names or present)})


def _start(command: Sequence[str], folder: Path, seconds: float) -> None:
    """Run the holder in a session of its own, and wait until it is ready. Raises what it says."""
    lock = registry.hold(folder)
    try:
        with (folder / registry.LOG).open("wb") as log:
            process = subprocess.Popen(
                [*command, str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock],
                text=True,
            )
    finally:
        os.close(lock)
    assert process.stdout is not None
    with process.stdout as words:
        line = line_within(words.fileno(), seconds)
    if not line:
        process.kill()
        process.wait(_DOWN_SECONDS)
        said = (folder / registry.LOG).read_text(errors="replace")[-_LOG_TAIL:].strip()
        raise LabError(f"the lab did not come up within {seconds:g} s, or ended: {said or 'it said nothing'}")
    try:
        unwrap(json.loads(line))
    except BaseException:
        process.wait(_DOWN_SECONDS)
        raise


def _end(lab: Path, seconds: float) -> None:
    """Ask it to end; end it when it does not answer. ``seconds``: what it may take to come up."""
    deadline = time.monotonic() + seconds
    while registry.held(lab):
        pid = registry.read_state(lab).get("pid")
        if pid is not None:
            with suppress(ProcessLookupError):
                process = os.pidfd_open(pid)
                try:
                    _finish(lab, process)
                finally:
                    os.close(process)
            return
        # It is coming up, and its starter was killed meanwhile.
        if time.monotonic() > deadline:
            raise LabError(f"the lab {lab.name!r} neither comes up nor ends; see {lab / registry.LOG}")
        time.sleep(0.01)


def _finish(lab: Path, process: int) -> None:
    try:
        ask(lab, "down")
    except LabError:
        signal.pidfd_send_signal(process, signal.SIGTERM)
    for last in (signal.SIGKILL, None):
        # Its lock is free as soon as it is dead; a moment before that its descriptor may be readable already.
        deadline = time.monotonic() + _DOWN_SECONDS
        while registry.held(lab) and time.monotonic() < deadline:
            select.select([process], [], [], 0.05)
        if not registry.held(lab):
            return
        if last is not None:
            signal.pidfd_send_signal(process, last)
    raise LabError(f"the process that holds the lab {lab.name!r} does not end")

"""The client of a lab's background process: start it, ask it, end it. See `ferrule.lab.daemon.server`."""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ferrule.errors import ConfigError, LabError
from ferrule.hardware import LabProfile, shipped
from ferrule.lab.daemon import messages, registry
from ferrule.lab.daemon.messages import Down, Request
from ferrule.process import NotReady, start_until_ready

ASK_SECONDS = 20.0
_DOWN_SECONDS = 20.0
_T = TypeVar("_T")


def ask(lab: Path, request: Request, kind: type[_T], *, seconds: float = ASK_SECONDS) -> _T:
    """Ask the process that holds a lab; see `messages.ask`."""
    cure = f"; end it (`down {lab.name}`)"
    return messages.ask(lab / registry.CONTROL, request, kind, seconds=seconds, who=f"the lab {lab.name!r}", cure=cure)


def up(
    kind: str,
    profile: LabProfile,
    name_or_file: str,
    name: str | None,
    program: Sequence[str],
    options: str,
    *,
    seconds: float,
    down: str,
) -> str:
    """Make a lab's directory and start the process that holds it; returns the lab's name.

    ``program``: the command of that process, but for its arguments; ``down``: the command that ends labs
    of this kind. Raises `ConfigError` for a name that is taken, and what the process says.
    """
    title = registry.check_name(name or profile.name)
    wanted = name_or_file if name_or_file in shipped().labs else str(Path(name_or_file).resolve())
    with registry.alone(kind) as labs:
        registry.reap(labs)
        folder = labs / title
        if folder.exists():
            raise ConfigError(f"there is a lab {title!r} already; end it ({down} {title}) or use --as NAME")
        folder.mkdir(mode=0o700)
        try:
            _start([*program, str(folder), wanted, options], folder, seconds)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return title


def present(kind: str) -> tuple[list[Path], list[str]]:
    """The directories of the labs that are up, and the names of those of which something was left and is gone now."""
    with registry.alone(kind) as labs:
        gone = registry.reap(labs)
        return sorted(lab for lab in labs.iterdir() if lab.is_dir()), gone


def down(kind: str, names: Sequence[str], seconds: float) -> list[str]:
    """End these labs, or all, and clear away what is left of others; returns the names of those that ended."""
    with registry.alone(kind) as labs:
        found = [lab.name for lab in labs.iterdir() if lab.is_dir()]
        for name in names:
            if name not in found:
                raise ConfigError(f"there is no lab {name!r} to end; there are {', '.join(found) or 'none'}")
        for name in names or found:
            _end(labs / name, seconds)
        return sorted({*registry.reap(labs)} & {*(names or found)})


def _start(command: Sequence[str], folder: Path, seconds: float) -> None:
    """Run the holder, which lives on, and wait until it is ready. Raises what it says."""
    lock = registry.hold(folder)
    try:
        process, line = start_until_ready(
            [*command, str(lock)], folder / registry.LOG, seconds, outlive=True, pass_fds=[lock]
        )
    except NotReady as said:
        raise LabError(f"the lab did not come up within {seconds:g} s, or ended: {said}") from None
    finally:
        os.close(lock)
    try:
        messages.take(line, type(None))
    except BaseException:
        process.wait(_DOWN_SECONDS)
        raise


def _end(lab: Path, seconds: float) -> None:
    """Ask it to end; end it when it does not answer. ``seconds``: what it may take to come up."""
    deadline = time.monotonic() + seconds
    while registry.held(lab):
        if (state := registry.read_state(lab)) is not None:
            with suppress(ProcessLookupError):
                process = os.pidfd_open(state.pid)
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
        ask(lab, Down(), type(None))
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

"""Run the system's programs with a deadline long enough for a compiler; what they started ends with them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ferrule.errors import DriverError, LinkError
from ferrule.links.doctor.fix import Target

_SECONDS = 900.0
_SYSTEM = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"


def run_here(argv: Sequence[str]) -> tuple[int, str]:
    """A `ferrule.links.doctor.fix.machine.Runner`."""
    program = shutil.which(argv[0], path=_SYSTEM)
    if program is None:
        raise LinkError(f"there is no `{argv[0]}` on this machine; install it")
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "PATH": _SYSTEM}
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a compiler is killed with all its children, and only by us
        )
    except OSError as error:
        raise LinkError(f"cannot run {program}: {error.strerror}") from error
    try:
        told, _ = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise LinkError(f"`{' '.join(argv)}` did not end within {_SECONDS:g} s") from None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, told.decode("utf-8", errors="replace").strip()


LIVE = Target(run=run_here)


def output(target: Target, *argv: str) -> str | None:
    """What a program printed; None if there is no such program, or it failed."""
    try:
        code, told = target.run(argv)
    except LinkError:
        return None
    return told if code == 0 else None


@contextmanager
def as_driver_error() -> Iterator[None]:
    """What the machine refuses is the driver's error."""
    try:
        yield
    except LinkError as error:
        raise DriverError(str(error)) from error

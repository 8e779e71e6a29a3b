"""The machine on which the driver is installed: programs of the system's own, and time enough for a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ferrule.errors import DriverError, LinkError
from ferrule.links.doctor.fix import Target
from ferrule.links.doctor.fix.machine import SYSTEM_PATH, run_here

_SECONDS = 900.0
_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "PATH": SYSTEM_PATH}


LIVE = Target(run=partial(run_here, seconds=_SECONDS, environment=_ENVIRONMENT))


def output(target: Target, *argv: str, failed: bool = False) -> str | None:
    """Output of a program; None if there is no such program, or it failed, unless ``failed`` ones count, too."""
    try:
        code, told = target.run(argv)
    except LinkError:
        return None
    return told if code == 0 or failed else None


@contextmanager
def as_driver_error() -> Iterator[None]:
    """Turn errors of the machine into the driver's error."""
    try:
        yield
    except LinkError as error:
        raise DriverError(str(error)) from error

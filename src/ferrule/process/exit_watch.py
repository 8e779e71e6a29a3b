"""Hear of the end of a child process in an event loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable

from ferrule.process.system import exit_fds, has_exited

_LOOK_SECONDS = 0.05


def when_ended(process: subprocess.Popen[bytes], then: Callable[[], None]) -> None:
    """Call ``then`` from the event loop when our child has ended, and is not reaped yet."""
    loop = asyncio.get_running_loop()
    (watch,) = exit_fds([process.pid])
    if watch is None:  # no such thing on this system

        def look() -> None:
            if has_exited(process):
                then()
            else:
                loop.call_later(_LOOK_SECONDS, look)

        loop.call_soon(look)
        return

    def ended(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        then()

    loop.add_reader(watch, ended, watch)

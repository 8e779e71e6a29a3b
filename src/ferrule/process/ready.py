"""Start a background process that says in a line when it is ready."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ferrule.process.tied import tied

_END_SECONDS = 20.0
_LOG_TAIL = 2000


class NotReady(Exception):
    """It ended or took too long; the text is the end of its log."""


def start_until_ready(
    command: Sequence[str], log: Path, seconds: float, *, outlive: bool, pass_fds: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], bytes]:
    """The process, and the first line of its standard output; its standard error is appended to ``log``.

    ``outlive``: it is a session of its own and lives on after this process; else it ends with the thread that starts
    it. Raises `NotReady` after ``seconds``, and then it has ended, and `OSError`.
    """
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command if outlive else tied(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=outlive,
            process_group=None if outlive else 0,
            pass_fds=pass_fds,
        )
    assert process.stdout is not None
    with process.stdout as output:
        line = _line_within(output.fileno(), seconds)
    if not line:
        process.kill()
        process.wait(_END_SECONDS)
        raise NotReady(log.read_text(errors="replace")[-_LOG_TAIL:].strip() or "it said nothing")
    return process, line


def _line_within(descriptor: int, seconds: float) -> bytes:
    """The first line that comes through a pipe, or nothing at its end or after ``seconds``."""
    deadline = time.monotonic() + seconds
    found = b""
    while not found.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return b""
        more = os.read(descriptor, 1 << 16)
        if not more:
            return b""
        found += more
    return found
